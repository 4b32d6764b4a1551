// @ts-check
// Axes: from values to pixels, and the round values that are written beside them.

/** @param {number} start @param {number} end @param {number} from @param {number} to */
export function linear(start, end, from, to) {
  const span = end - start || 1;
  return (/** @type {number} */ value) => from + ((value - start) / span) * (to - from);
}

/** Round values between two, about so many. @param {number} start @param {number} end @param {number} about */
export function ticks(start, end, about) {
  const rough = (end - start) / Math.max(about, 1);
  if (!(rough > 0)) return [start];
  const magnitude = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * magnitude).find((candidate) => candidate >= rough) ?? magnitude;
  const found = [];
  for (let place = Math.ceil(start / step); place * step <= end + step * 1e-9; place += 1) found.push(place * step);
  return found;
}

/** Seconds that people count in: 1, 5, 15, 60, ... @param {number} seconds @param {number} about */
export function timeTicks(seconds, about) {
  const steps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400];
  const step = steps.find((candidate) => seconds / candidate <= about) ?? 86_400 * Math.ceil(seconds / 86_400 / about);
  const found = [];
  for (let at = 0; at <= seconds; at += step) found.push(at);
  return found;
}
