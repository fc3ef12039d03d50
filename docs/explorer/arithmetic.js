// Numbers of binary formats, exactly: integers of any length, and each result rounded once.
// A number is {kind: "nan"}, {kind: "infinite", negative}, or {kind: "finite", negative, num, den} with the
// magnitude num / den, a fraction of BigInts; zero has num = 0 and keeps its sign.
"use strict";

const MODES = ["nearest_even", "nearest_away", "toward_zero", "up", "down", "to_odd"];
const NAN = { kind: "nan" };
const infinite = (negative) => ({ kind: "infinite", negative });
const finite = (negative, num, den = 1n) => ({ kind: "finite", negative, num, den });

const bitLength = (n) => BigInt(n.toString(2).length) * (n > 0n ? 1n : 0n);
const power = (exponent) => 1n << BigInt(exponent);

/** A number times two to an exponent. */
function scaled(num, den, exponent) {
  return exponent >= 0 ? [num * power(exponent), den] : [num, den * power(-exponent)];
}

/** The exponent of the largest power of two that does not exceed num / den. */
function floorLog2(num, den) {
  const guess = Number(bitLength(num) - bitLength(den));
  const [a, b] = scaled(1n, 1n, guess);
  return num * b >= a * den ? guess : guess - 1;
}

// -- formats ------------------------------------------------------------------------------------------------
/** A signed format with zero and subnormal numbers, and what follows from its fields. */
function makeFormat({ p, emin, emax, specials }) {
  const top = specials === "fn" || specials === "nuz" ? 1n : 0n;
  const codes = emax - emin + 2 + (specials === "ieee" ? 1 : Number(top >> BigInt(p - 1)));
  const exponentBits = Number(bitLength(BigInt(codes - 1)));
  const bias = 1 - emin;
  const shared = emax + bias === 2 ** exponentBits - 1;
  const most = power(p) - 1n - (shared ? top : 0n);
  const [num, den] = scaled(most, 1n, emax - p + 1);
  return {
    p, emin, emax, specials, exponentBits, bias, bits: exponentBits + p,
    max: finite(false, num, den),
    hasInfinity: specials === "ieee" || specials === "nuz",
    hasNan: specials !== "none",
    hasNegativeZero: specials !== "fnuz" && specials !== "nuz",
  };
}

/** Whether a number between two neighbours rounds to the one of the larger magnitude. */
function goesOutward(mode, negative, odd, beyond) {
  switch (mode) {
    case "nearest_even": return beyond > 0 || (beyond === 0 && odd);
    case "nearest_away": return beyond >= 0;
    case "toward_zero": return false;
    case "up": return !negative;
    case "down": return negative;
    case "to_odd": return !odd;
  }
  throw new Error(`no mode ${mode}`);
}

/** A number rounded into a format; past its maximum as IEEE 754 has it. */
function round(x, format, mode = "nearest_even") {
  if (x.kind === "nan") return NAN;
  if (x.kind === "infinite") return format.hasInfinity ? x : NAN;
  const zero = finite(x.negative && format.hasNegativeZero, 0n);
  if (x.num === 0n) return zero;
  const exponent = Math.max(floorLog2(x.num, x.den), format.emin) - format.p + 1;
  const [num, den] = scaled(x.num, x.den, -exponent);
  let kept = num / den;
  const rest = num - kept * den;
  if (rest > 0n) {
    const beyond = 2n * rest > den ? 1 : 2n * rest < den ? -1 : 0;
    if (goesOutward(mode, x.negative, (kept & 1n) === 1n, beyond)) kept += 1n;
  }
  if (kept === 0n) return zero;
  const rounded = finite(x.negative, ...scaled(kept, 1n, exponent));
  if (compareMagnitudes(rounded, format.max) <= 0) return rounded;
  // The maximum counts as odd, and what is past it as above every midpoint.
  if (goesOutward(mode, x.negative, true, 1) && format.hasNan)
    return format.hasInfinity ? infinite(x.negative) : NAN;
  return { ...format.max, negative: x.negative };
}

// -- arithmetic ---------------------------------------------------------------------------------------------
const compareMagnitudes = (a, b) => {
  const left = a.num * b.den, right = b.num * a.den;
  return left > right ? 1 : left < right ? -1 : 0;
};
const negated = (x) => (x.kind === "nan" ? x : { ...x, negative: !x.negative });
const isZero = (x) => x.kind === "finite" && x.num === 0n;
/** Whether two numbers are the same, signs of zero included. */
const same = (a, b) =>
  a.kind === b.kind &&
  (a.kind === "nan" || (a.negative === b.negative && (a.kind === "infinite" || compareMagnitudes(a, b) === 0)));

/** The exact sum; a zero that is exact has the sign that IEEE 754 gives it in a mode. */
function exactSum(a, b, mode = "nearest_even") {
  if (a.kind === "nan" || b.kind === "nan") return NAN;
  if (a.kind === "infinite") return b.kind === "infinite" && a.negative !== b.negative ? NAN : a;
  if (b.kind === "infinite") return b;
  const left = (a.negative ? -a.num : a.num) * b.den, right = (b.negative ? -b.num : b.num) * a.den;
  const sum = left + right;
  if (sum === 0n) return finite(mode === "down" ? a.negative || b.negative : a.negative && b.negative, 0n);
  return finite(sum < 0n, sum < 0n ? -sum : sum, a.den * b.den);
}

/** Operands without a negative zero where the format has none. */
const operand = (x, format) => (isZero(x) && !format.hasNegativeZero ? finite(false, 0n) : x);
const add = (a, b, format, mode) =>
  round(exactSum(operand(a, format), operand(b, format), mode), format, mode);
const sub = (a, b, format, mode) =>
  round(exactSum(operand(a, format), negated(operand(b, format)), mode), format, mode);

/** 2Sum (Knuth): the sum and its error, by six operations; each of them, with its name. */
function twoSum(a, b, format, mode) {
  const s = add(a, b, format, mode), a1 = sub(s, b, format, mode), b1 = sub(s, a1, format, mode);
  const da = sub(a, a1, format, mode), db = sub(b, b1, format, mode);
  const e = add(da, db, format, mode);
  return { s, e, steps: [["s = a + b", s], ["a' = s - b", a1], ["b' = s - a'", b1],
    ["a - a'", da], ["b - b'", db], ["e = (a - a') + (b - b')", e]] };
}

/** Fast2Sum (Dekker): the same by three, where |a| >= |b|. */
function fastTwoSum(a, b, format, mode) {
  const s = add(a, b, format, mode), z = sub(s, a, format, mode), e = sub(b, z, format, mode);
  return { s, e, steps: [["s = a + b", s], ["z = s - a", z], ["e = b - z", e]] };
}

// -- codes --------------------------------------------------------------------------------------------------
/** The code of a value of a format, a BigInt; null of NaN or infinity without a code. */
function encode(x, format) {
  const { p, bias, emin, exponentBits, specials } = format;
  const sign = power(exponentBits + p - 1);
  if (x.kind === "nan") {
    if (!format.hasNan) return null;
    if (specials === "fnuz" || specials === "nuz") return sign;
    return specials === "fn" ? sign - 1n : (power(exponentBits) - 1n) * power(p - 1) + power(p - 2);
  }
  const field = x.negative ? sign : 0n;
  if (x.kind === "infinite") {
    if (!format.hasInfinity) return null;
    return field + (specials === "nuz" ? sign - 1n : (power(exponentBits) - 1n) * power(p - 1));
  }
  if (x.num === 0n) return x.negative && format.hasNegativeZero ? sign : 0n;
  const exponent = Math.max(floorLog2(x.num, x.den), emin);
  const [num, den] = scaled(x.num, x.den, p - 1 - exponent);
  const significand = num / den;
  const biased = significand < power(p - 1) ? 0n : BigInt(exponent + bias);
  return field + biased * power(p - 1) + (significand & (power(p - 1) - 1n));
}

/** The value of a code. */
function decode(code, format) {
  const { p, bias, emin, exponentBits, specials } = format;
  const sign = power(exponentBits + p - 1), negative = code >= sign;
  const magnitude = code & (sign - 1n);
  const field = magnitude >> BigInt(p - 1), fraction = magnitude & (power(p - 1) - 1n);
  const top = power(exponentBits) - 1n;
  if ((specials === "fnuz" || specials === "nuz") && code === sign) return NAN;
  if (specials === "ieee" && field === top) return fraction ? NAN : infinite(negative);
  if (specials === "fn" && magnitude === sign - 1n) return NAN;
  if (specials === "nuz" && magnitude === sign - 1n) return infinite(negative);
  const significand = field ? fraction + power(p - 1) : fraction;
  const exponent = (field ? Number(field) - bias : emin) - p + 1;
  const found = finite(negative, ...scaled(significand, 1n, exponent));
  return significand && compareMagnitudes(found, format.max) > 0 ? NAN : found;
}

/** The next value above, or below; infinity counts as one, and both zeros as one. */
function neighbour(x, format, up) {
  if (x.kind === "nan") return NAN;
  if (x.kind === "infinite") return x.negative === up ? { ...format.max, negative: x.negative } : NAN;
  const [num, den] = scaled(1n, 1n, format.emin - format.p); // half of the smallest number
  const beside = exactSum(x, finite(!up, num, den));
  return round(beside, format, up ? "up" : "down");
}

/** The unit in the last place of a finite value. */
function ulp(x, format) {
  const exponent = x.num === 0n ? format.emin : Math.max(floorLog2(x.num, x.den), format.emin);
  return finite(false, ...scaled(1n, 1n, exponent - format.p + 1));
}

// -- text ---------------------------------------------------------------------------------------------------
/** The number that a text stands for, exactly; null if it is none. */
function parse(text) {
  const words = text.trim().toLowerCase().replace(/_/g, "");
  const negative = words.startsWith("-"), body = words.replace(/^[+-]/, "");
  if (/^(inf|infinity)$/.test(body)) return infinite(negative);
  if (body === "nan") return NAN;
  let found = /^(\d*)\.?(\d*)(?:e([+-]?\d{1,4}))?$/.exec(body);
  if (found && found[1] + found[2]) {
    const shift = Number(found[3] ?? 0) - found[2].length, digits = BigInt(found[1] + found[2]);
    return finite(negative, digits * 10n ** BigInt(Math.max(shift, 0)), 10n ** BigInt(Math.max(-shift, 0)));
  }
  found = /^0x([0-9a-f]*)\.?([0-9a-f]*)(?:p([+-]?\d{1,4}))?$/.exec(body);
  if (found && found[1] + found[2]) {
    const exponent = Number(found[3] ?? 0) - 4 * found[2].length;
    return finite(negative, ...scaled(BigInt(`0x${found[1]}${found[2]}`), 1n, exponent));
  }
  found = /^(\d+)(?:\/(\d+))?$/.exec(body) ?? null;
  if (found && found[2] && BigInt(found[2])) return finite(negative, BigInt(found[1]), BigInt(found[2]));
  found = /^2\^([+-]?\d{1,4})$/.exec(body);
  return found ? finite(negative, ...scaled(1n, 1n, Number(found[1]))) : null;
}

/** A number in decimal digits: exactly if these are few, else 12 of them and a sign that it is about so. */
function show(x) {
  if (x.kind === "nan") return "NaN";
  const sign = x.negative ? "-" : "";
  if (x.kind === "infinite") return `${sign}inf`;
  if (x.num === 0n) return `${sign}0`;
  let { num, den } = x, twos = 0, fives = 0;
  while (den % 2n === 0n) { den /= 2n; twos += 1; }
  while (den % 5n === 0n) { den /= 5n; fives += 1; }
  const places = Math.max(twos, fives);
  if (den === 1n && places < 60) {
    const digits = (num * 2n ** BigInt(places - twos) * 5n ** BigInt(places - fives)).toString().padStart(places + 1, "0");
    const whole = digits.slice(0, digits.length - places);
    const fraction = digits.slice(digits.length - places).replace(/0+$/, "");
    const text = fraction ? `${whole}.${fraction}` : whole;
    if (text.length <= 22) return sign + text;
  }
  return `${sign}${about(x).toPrecision(12).replace(/\.?0+(e|$)/, "$1")}...`;
}

/** A binary64 number near the magnitude, by its leading bits. */
function about(x) {
  const shift = 64 - Number(bitLength(x.num) - bitLength(x.den));
  const [num, den] = scaled(x.num, x.den, shift);
  return Number(num / den) * 2 ** -Math.min(shift, 1000) * 2 ** -Math.max(shift - 1000, 0);
}

/** The exact number that a binary64 number is. */
function fromNumber(x) {
  if (Number.isNaN(x)) return NAN;
  const negative = x < 0 || Object.is(x, -0), size = Math.abs(x);
  if (size === Infinity) return infinite(negative);
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, size);
  const bits = view.getBigUint64(0), field = Number(bits >> 52n), fraction = bits & (power(52) - 1n);
  return finite(negative, ...scaled(field ? fraction + power(52) : fraction, 1n, Math.max(field, 1) - 1075));
}

/** A number of any sign as binary64, for pictures. */
const toNumber = (x) =>
  x.kind === "nan" ? NaN : (x.negative ? -1 : 1) * (x.kind === "infinite" ? Infinity : x.num ? about(x) : 0);
