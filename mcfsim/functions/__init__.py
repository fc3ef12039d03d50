"""Functions of numerical analysis and machine learning, each a straight line of an arithmetic's operations.

Textbook and careful versions stand side by side, each with the bound that is known for it. They are test
cases of error analyses. `fpbench` is a published suite, with ranges of inputs. Imports `multiword` and below.
Begin with `reductions`.
"""

from mcfsim.functions.activations import (
    gelu,
    sigmoid,
    silu,
    silu_gradient,
    softplus,
    squared_relu,
    squared_relu_gradient,
)
from mcfsim.functions.complex_numbers import (
    complex_product,
    complex_product_fma,
    complex_quotient,
    smith_quotient,
)
from mcfsim.functions.fpbench import FPBENCH, Benchmark
from mcfsim.functions.geometry import givens, hypot, rotation, scaled_hypot
from mcfsim.functions.iterations import (
    bisection,
    conjugate_gradients,
    iterative_refinement,
    newton_schulz_step,
    reciprocal_newton,
    sqrt_newton,
)
from mcfsim.functions.logits import (
    cross_entropy,
    cross_entropy_gradient,
    log_softmax,
    log_sum_exp,
    naive_log_sum_exp,
    naive_softmax,
    softmax,
    softmax_gradient,
)
from mcfsim.functions.normalization import layer_norm, layer_norm_gradient, rms_norm, rms_norm_gradient
from mcfsim.functions.polynomials import (
    compensated_horner,
    estrin,
    horner,
    polynomial_from_roots,
    polynomial_product,
    quadratic_roots,
    stable_quadratic_roots,
)
from mcfsim.functions.reductions import (
    difference_of_products,
    doubly_compensated_sum,
    fma_dot,
    pairwise_dot,
    pairwise_sum,
    recursive_dot,
)
from mcfsim.functions.statistics import (
    debiased_ema,
    ema,
    ema_in_components,
    mean,
    variance_one_pass,
    variance_two_pass,
    variance_welford,
)
from mcfsim.multiword.summation import dot2, dw_sum, kahan_sum, neumaier_sum, recursive_sum, sum_k

__all__ = [
    "FPBENCH",
    "Benchmark",
    "bisection",
    "compensated_horner",
    "complex_product",
    "complex_product_fma",
    "complex_quotient",
    "conjugate_gradients",
    "cross_entropy",
    "cross_entropy_gradient",
    "debiased_ema",
    "difference_of_products",
    "dot2",
    "doubly_compensated_sum",
    "dw_sum",
    "ema",
    "ema_in_components",
    "estrin",
    "fma_dot",
    "gelu",
    "givens",
    "horner",
    "hypot",
    "iterative_refinement",
    "kahan_sum",
    "layer_norm",
    "layer_norm_gradient",
    "log_softmax",
    "log_sum_exp",
    "mean",
    "naive_log_sum_exp",
    "naive_softmax",
    "neumaier_sum",
    "newton_schulz_step",
    "pairwise_dot",
    "pairwise_sum",
    "polynomial_from_roots",
    "polynomial_product",
    "quadratic_roots",
    "reciprocal_newton",
    "recursive_dot",
    "recursive_sum",
    "rms_norm",
    "rms_norm_gradient",
    "rotation",
    "scaled_hypot",
    "sigmoid",
    "silu",
    "silu_gradient",
    "smith_quotient",
    "softmax",
    "softmax_gradient",
    "softplus",
    "sqrt_newton",
    "squared_relu",
    "squared_relu_gradient",
    "stable_quadratic_roots",
    "sum_k",
    "variance_one_pass",
    "variance_two_pass",
    "variance_welford",
]
