/**
 * The clock that all processes of a host share.
 */

const offsetUs = Number(process.hrtime.bigint()) / 1000 - performance.now() * 1000;

/**
 * Microseconds on CLOCK_MONOTONIC: comparable between the processes and threads of one host. Resolution about 0.1 µs.
 */
export function nowUs(): number {
  return performance.now() * 1000 + offsetUs;
}
