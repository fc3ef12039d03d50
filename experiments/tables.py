"""Put the tables made from the result files into README and docs, between their markers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from fractions import Fraction
from typing import Any

import mcfsim as mcf
from experiments import (
    adapters,
    assignment,
    audit_forecast,
    best_rates,
    commands,
    common,
    dqt_bits,
    dqt_published,
    dqt_tensors,
    embedding_steps,
    every_p,
    every_p_bounds,
    family_search,
    first_moment,
    fpbench_errors,
    gallery,
    gemm_bias,
    gemm_losses,
    gemm_noise,
    gemm_promotion,
    gemm_underflow,
    gpu,
    instructions,
    late_training,
    lost_directions,
    lost_update_phase,
    memory_quality,
    muon_losses,
    own_rates,
    paired,
    posit_quire,
    precision_law,
    propositions,
    real_audit,
    reduced_gradients,
    reduced_runs,
    released_code_audit,
    replicas,
    rounding_points,
    scheme_equivalence,
    sizes,
    sr_random_bits,
    stalled_averages,
    strategy_losses,
    switch,
    theorems,
    torch_steps,
    train_gpt,
    weight_transfers,
)
from experiments import claims as statements
from experiments.common import read_result, versions_of
from mcfsim.compile.llvm_source import source
from mcfsim.compile.lowering import lower
from mcfsim.compile.tracing import trace
from mcfsim.compile.triton_source import kernel_source
from mcfsim.formats import Grid, Posit, digits, format_table
from mcfsim.kernels.carriers import carrier_of
from mcfsim.models.memory import SHAPES, Model
from mcfsim.report.tables import markdown_table, memory_table
from mcfsim.rounding import Underflow
from mcfsim.scaled import scaled_table
from mcfsim.storage.files import write_text

#: Rows of the README's table, by the result's name for the strategy.
OPTIONS = {
    "plain": "`plain`: bf16 throughout (A)",
    "fp32-optim": "`fp32-optim`: moments in fp32",
    "kahan": "`kahan`",
    "collage-light": "`collage-light` (B)",
    "collage-plus": "`collage-plus` (C)",
    "collage-plus, m in 2": "the same, m in 2 components",
    "scalars rounded": "the same as C, scalars rounded first",
    "fp32-master": "`fp32-master` (D)",
}
#: What the README shows of longer tables.
FEW_OPTIONS = (
    "plain",
    "stochastic-parameter",
    "collage-light",
    "collage-plus",
    "split-master",
    "fp32-master",
)
FEW_CONSTANTS = ("grow", "accurate_dw_plus_dw", "dw_times_dw3", "dw_div_dw3")
FEW_FORMATS = ("float32", "bfloat16", "float16", "float8_e5m2", "float8_e4m3fn", "float4_e2m1fn")

#: A few of each family of formats.
FAMILIES = (
    *("e6m9", "binary8p3se", "binary8p4sf", "binary8p4uf"),
    *("posit8", "posit16", "posit32", "int8", "int4", "ternary"),
)
#: Scaled formats that stand for all.
SCALED = tuple(name for name in mcf.SCALED if name not in ("int2", "int3", "int5", "int6", "int7"))

#: Formats with an infinity, with a NaN only, with neither, and of the other kinds.
OVERFLOWING = ("float8_e5m2", "float8_e4m3fn", "float4_e2m1fn", "posit8", "int8")
#: Number, mode and policy.
OVERFLOWS = (
    (1e9, "nearest_even", "ieee"),
    (1e9, "toward_zero", "ieee"),
    (-1e9, "up", "ieee"),
    (1e9, "nearest_even", "saturate"),
    (float("inf"), "nearest_even", "saturate"),
)
#: Operations of float8_e4m3fn whose operands or results lie below its smallest normal number.
UNDERFLOWS = (("add", 0.01171875, 0.01171875), ("mul", 0.125, 0.09375), ("mul", 0.140625, 0.109375))


def formats() -> str:
    """Return the table of all formats."""
    return markdown_table(format_table())


def few_formats() -> str:
    """Return the table of the formats that are used most."""
    return markdown_table(format_table(map(mcf.get_format, FEW_FORMATS)))


def families() -> str:
    """Return which numbers the formats of each family hold."""
    rows = []
    for fmt in map(mcf.get_format, FAMILIES):
        precision = "" if isinstance(fmt, Grid) else str(fmt.precision)
        rows.append(
            {
                "format": str(fmt),
                "bits": str(fmt.bits),
                "p": f"up to {precision}" if isinstance(fmt, Posit) else precision,
                "smallest": digits(fmt.smallest_subnormal, 6),
                "largest": digits(fmt.max, 6),
                "least": digits(fmt.lowest, 6),
                "inf": "yes" if fmt.has_infinity else "no",
                "NaN": "yes" if fmt.has_nan else "no",
                "-0": "yes" if fmt.has_negative_zero else "no",
                "carrier": str(carrier_of(fmt)),
            }
        )
    return markdown_table(rows)


def overflow() -> str:
    """Return what becomes of numbers beyond the largest, by mode, policy and format."""
    return markdown_table(
        [
            {"number": f"{number:g}", "mode": mode, "overflow": policy}
            | {name: f"{mcf.round_to(number, name, mode, policy):.10g}" for name in OVERFLOWING}
            for number, mode, policy in OVERFLOWS
        ]
    )


def underflow() -> str:
    """Return what each policy makes of operations on small numbers."""
    rows = []
    for name, a, b in UNDERFLOWS:
        row = {"operation": f"{a:.10g} {'+' if name == 'add' else '*'} {b:.10g}"}
        for policy in Underflow:
            ar = mcf.arithmetic("float8_e4m3fn", underflow=policy)
            row[str(policy)] = f"{getattr(ar, name)(a, b):.10g}"
        rows.append(row)
    return markdown_table(rows)


def scaled() -> str:
    """Return the table of scaled formats."""
    return markdown_table(scaled_table(map(mcf.get_scaled_format, SCALED)))


def options() -> str:
    """Return what each option of the small model costs and loses, for every beta2."""
    rows = []
    result = read_result("collage_options")
    for beta2 in ("0.999", "0.95"):
        by_name = result["table"][beta2]
        by_name["scalars rounded"] = result["rounded_scalars"] if beta2 == "0.999" else None
        for name, label in OPTIONS.items():
            if by_name[name] is None:
                continue
            row = by_name[name]
            edq = f"{row['normalized_edq']:.4f} ({row['late_normalized_edq']:.4f})"
            rows.append(
                {
                    "option": label,
                    "bytes": f"{row['bytes_per_parameter']:g}",
                    "beta2": beta2,
                    "lost arithmetic (late)": f"{row['lost']:.3f} ({row['late_lost']:.3f})",
                    "normalised EDQ (late)": edq,
                    "v / exact, late": f"{row['late_v_ratio']:.4f}",
                    "validation loss": f"{row['validation_loss']:.4f}",
                    "minus `fp32-master` (95 % interval)": ""
                    if name == "fp32-master"
                    else paired.shown(row["differences"]),
                }
            )
    return markdown_table(rows)


def memory() -> str:
    """Return the memory that each strategy takes for the models that the paper trains."""
    models = [Model(name, shape.size) for name, shape in SHAPES.items()]
    return markdown_table(memory_table(models, "bfloat16"))


def benchmarks() -> str:
    """Return the benchmark of the emulator beside other libraries."""
    result = read_result("benchmarks")
    about = result["versions"]
    steps = ", ".join(f"{row['strategy']} {row['ns_per_parameter']:.0f}" for row in result["adamw"])
    peers = [pair for pair in result["pairs"] if pair["peer"] != "the algorithm alone"]
    return (
        f"{_beside(peers)}\n\n"
        f"{about['processor']}, one thread, 2^{result['size'].bit_length() - 1} elements, medians; "
        f"{versions_of(about)}. One AdamW step: {steps} ns a parameter."
    )


def sweeps() -> str:
    """Return how many pairs per second statements are tried on."""
    rows = [pair for pair in read_result("benchmarks")["pairs"] if pair["peer"] == "the algorithm alone"]
    return markdown_table(
        [
            {
                "statement": row["operation"].removeprefix("verify "),
                "ns / pair": f"{row['ns']:.2f}",
                "algorithm alone": f"{row['peer_ns']:.2f}",
                "Gpair / s": f"{1 / row['ns']:.3f}",
                "all pairs, s": f"{row['ns'] * 65280**2 / 1e9:.0f}",
            }
            for row in rows
        ]
    )


def constants(names: Collection[str] | None = None) -> str:
    """Return the worst errors of double-word algorithms by precision; sampled ones are in parentheses."""
    rows = []
    for name, item in read_result("worst_constants")["statements"].items():
        if name == "grow_unordered" or (names is not None and name not in names):
            continue
        row = {"algorithm": f"`{name}`", "bound at p = 8": ""}
        for found in item["worst"]:
            number = f"{float(found['decimal']):.5f}"
            row[f"p = {found['p']}"] = number if found["exhaustive"] else f"({number})"
            if found["p"] == 8:
                row["bound at p = 8"] = f"{float(Fraction(found['bound'])):.4g}"
        rows.append(row)
    return markdown_table(rows)


def passes() -> str:
    """Return what rounding to bfloat16 consists of."""
    times = read_result("benchmarks")["passes"]
    rows = [{"pass": name, "ns / element": f"{ns:.2f}"} for name, ns in times.items()]
    return markdown_table([*rows, {"pass": "sum", "ns / element": f"{sum(times.values()):.2f}"}])


def _beside(pairs: list[dict[str, Any]]) -> str:
    return markdown_table(
        [
            {
                "operation": pair["operation"],
                "peer": pair["peer"],
                "ns / element": f"{pair['ns']:.2f}",
                "peer's": f"{pair['peer_ns']:.2f}",
                "times as fast": f"{pair['ratio']:.2f}",
            }
            for pair in pairs
        ]
    )


def calls() -> str:
    """Return the benchmark of what users call."""
    result = read_result("calls")
    about, sizes = result["versions"], [result[x].bit_length() - 1 for x in ("size", "parameters")]
    said = f"{about['processor']}, one thread but where two are said, medians; 2^{sizes[0]} elements,"
    return f"{_beside(result['calls'])}\n\n{said} 2^{sizes[1]} parameters; {versions_of(about)}."


def limits() -> str:
    """Return the benchmark of loops that write into existing memory."""
    return _beside(read_result("calls")["limits"])


def algorithms() -> str:
    """Return the benchmark of whole algorithms on NumPy."""
    result = read_result("algorithms")
    about = result["versions"]
    return (
        f"{_beside(result['pairs'])}\n\n"
        f"{about['processor']}, one thread, medians of its time; 2^{result['size'].bit_length() - 1} "
        f"elements; NumPy {about['numpy']}, Python {about['python']}."
    )


def two_sum_loop() -> str:
    """Return the generated source of 2Sum in bfloat16."""
    lowered = lower(trace(mcf.two_sum, "bfloat16"), ())
    return f"```llvm\n{source(lowered, 'two_sum, 6 operations.')}```"


def two_sum_kernel() -> str:
    """Return the generated kernel of 2Sum on codes of bfloat16."""
    lowered = lower(trace(mcf.two_sum, "bfloat16"), (), packed=True, clean=False)
    return f"```py\n{kernel_source(lowered, 'two_sum, 6 operations.')}```"


def kernel_of(name: str, *, hardware: bool, language: str = "python") -> Callable[[], str]:
    """Return a function that gives the generated kernel of a program on codes."""
    return lambda: f"```{language}\n{instructions.source(name, hardware=hardware)}```"


#: What stands between the markers of each name.
TABLES: dict[str, Callable[[], str]] = {
    "formats": formats,
    "families": families,
    "overflow": overflow,
    "underflow": underflow,
    "scaled": scaled,
    "few_formats": few_formats,
    "options": options,
    "best_rates": best_rates.table,
    "own_rates": own_rates.table,
    "few_own_rates": lambda: own_rates.table(FEW_OPTIONS),
    "own_rates_tuning": own_rates.tuning_table,
    "evidence": statements.table,
    "first_moment": first_moment.table,
    "first_moment_blame": first_moment.blame_table,
    "first_moment_middles": first_moment.middles_table,
    "memory": memory,
    "benchmarks": benchmarks,
    "passes": passes,
    "sweeps": sweeps,
    "calls": calls,
    "limits": limits,
    "algorithms": algorithms,
    "two_sum_loop": two_sum_loop,
    "gpu": gpu.measured,
    "two_sum_kernel": two_sum_kernel,
    "two_sum_by_instructions": kernel_of("two_sum", hardware=True),
    "collage_plus_kernel": kernel_of("collage-plus", hardware=False, language="text"),
    "collage_plus_by_instructions": kernel_of("collage-plus", hardware=True, language="text"),
    "instruction_counts": instructions.counts_table,
    "instruction_forecast": instructions.forecast_table,
    "constants": constants,
    "few_constants": lambda: constants(FEW_CONSTANTS),
    "sizes": sizes.memory,
    "sizes_beside": sizes.beside,
    "rounding_points": rounding_points.table,
    "lost_directions": lost_directions.table,
    "reduced_gradients": reduced_gradients.table,
    "reduced_runs": reduced_runs.table,
    "muon_losses": muon_losses.table,
    "gemm_promotion": gemm_promotion.table,
    "gemm_losses": gemm_losses.table,
    "gemm_parts": gemm_losses.parts_table,
    "gemm_underflow": gemm_underflow.table,
    "gemm_bias": gemm_bias.bias_table,
    "gemm_condition": gemm_noise.table,
    "torch_matrices": torch_steps.matrices,
    "switch": switch.table,
    "switch_rates": switch.rate_table,
    "stalled_averages": stalled_averages.constant_table,
    "stalled_moments": stalled_averages.moments_table,
    "averaged_weights": stalled_averages.weights_table,
    "lost_update_phase": lost_update_phase.table,
    "scheme_equivalence": scheme_equivalence.table,
    "sr_random_bits": sr_random_bits.table,
    "replicas": replicas.table,
    "posit_quire": posit_quire.table,
    "fpbench_errors": fpbench_errors.table,
    "posit_decay": posit_quire.decay_table,
    "torch_steps": torch_steps.table,
    "audit_forecast": audit_forecast.summary,
    "audit_tensors": audit_forecast.details,
    "adapters": adapters.table,
    "adapters_kept": adapters.kept_table,
    "adapters_forecast": adapters.forecast_table,
    "dqt_bits": dqt_bits.bits_table,
    "dqt_long": dqt_bits.long_table,
    "dqt_tensors": dqt_tensors.table,
    "dqt_published": dqt_published.table,
    "late_training": late_training.table,
    "dqt_memory": lambda: markdown_table(memory_table([], "bfloat16", [*mcf.GRID_STRATEGIES])),
    "released_code": released_code_audit.table,
    "train_gpt": train_gpt.table,
    "train_gpt_100M": train_gpt.stops_table,
    "assignment": assignment.table,
    "strategies": strategy_losses.table,
    "memory_quality": memory_quality.table,
    "embedding_steps": embedding_steps.table,
    "precision_law": precision_law.fitted,
    "precision_held_out": precision_law.held_out,
    "precision_optimum": precision_law.optimum,
    "claims": propositions.claims_table,
    "hypotheses": propositions.hypotheses_table,
    "parts": propositions.parts_table,
    "logic": propositions.logic_table,
    "signs": propositions.legend,
    "theorems": theorems.overview,
    "theorem_details": theorems.details,
    "every_p": every_p.table,
    "every_p_overview": every_p.overview,
    "every_p_bounds": every_p_bounds.table,
    "every_p_facts": every_p_bounds.facts_table,
    "family_search": family_search.table,
    "gallery": gallery.table,
    "real_audit": real_audit.table,
    "weight_transfers": weight_transfers.table,
    "recorded_steps": torch_steps.recorded_table,
    **commands.tables(),
}
#: Pages that have tables.
PAGES = [page for page in common.PAGES if "<!-- table: " in page.read_text()]


def fill(text: str) -> str:
    """Return a page with every marked table made anew.

    Raises
    ------
    ValueError
        If a marker names no table.
    """

    def make(match: re.Match[str]) -> str:
        name = match[1]
        if name not in TABLES:
            raise ValueError(f"a marker names the table {name!r}; known tables: {', '.join(TABLES)}")
        return f"<!-- table: {name} -->\n{TABLES[name]()}\n<!-- end of table -->"

    return re.sub(r"<!-- table: (\w+) -->\n.*?<!-- end of table -->", make, text, flags=re.DOTALL)


def main() -> None:
    """Rewrite the pages, and print what the options cost."""
    for page in PAGES:
        write_text(page, fill(page.read_text()))
    print(options())


if __name__ == "__main__":
    main()
