/**
 * Bytes of an input before they are in the queue: in memory, or somewhere from where they are copied straight into it.
 *
 * Invariant: copying never throws, since a claim is being filled then. What could not be copied is zeros, and `fault` says why.
 */
export interface TensorSource {
  readonly length: number;
  /** Why the last copy is not what it should be; undefined while there is no reason. */
  readonly fault: string | undefined;
  /** Fills `target`, which has `length` bytes. */
  copyTo(target: Uint8Array): void;
  /** The bytes from `start` to `end`, as a source of their own. */
  subarray(start: number, end: number): TensorSource;
}

/** Of BYTES and of BOOL always in memory, as they have been looked at. */
export type TensorBytes = Uint8Array | TensorSource;

/** Why an input could not be copied; undefined where all were. */
export function copyFault(inputs: readonly TensorBytes[]): string | undefined {
  for (const input of inputs) if (!(input instanceof Uint8Array) && input.fault !== undefined) return input.fault;
  return undefined;
}
