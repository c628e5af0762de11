/**
 * The clock that all processes of a host share.
 */

/** Reads of both clocks at start; the tightest pair counts, as the process may be interrupted between the two. */
const ATTEMPTS = 8;

function measureOffsetUs(): number {
  let best = 0;
  let bestSpanUs = Number.POSITIVE_INFINITY;
  for (let n = 0; n < ATTEMPTS; n++) {
    const before = process.hrtime.bigint();
    const now = performance.now() * 1000;
    const after = process.hrtime.bigint();
    const spanUs = Number(after - before) / 1000;
    if (spanUs < bestSpanUs) {
      bestSpanUs = spanUs;
      best = Number(before + after) / 2000 - now;
    }
  }
  return best;
}

const offsetUs = measureOffsetUs();

/** Microseconds on CLOCK_MONOTONIC: comparable between the processes and threads of one host. Resolution about 0.1 µs. */
export function nowUs(): number {
  return performance.now() * 1000 + offsetUs;
}
