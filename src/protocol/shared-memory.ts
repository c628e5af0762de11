/**
 * Tensors in regions of shared memory: how a request names them, and what has to be true of that.
 *
 * Source: the system shared memory extension of the protocol.
 */
import { BatchportError } from '../config/errors.ts';
import type { TensorSource } from '../queue/tensor-source.ts';
import type { OutputTensor } from './response-encoder.ts';

/** Parameters by which a tensor refers to a region. */
export const REGION_PARAMETER = 'shared_memory_region';
export const BYTE_SIZE_PARAMETER = 'shared_memory_byte_size';
export const OFFSET_PARAMETER = 'shared_memory_offset';

/** Bytes of a region, as a request names them: unchecked but for their form. */
export interface SharedReference {
  readonly region: string;
  readonly byteSize: number;
  /** From the start of the region. */
  readonly offset: number;
}

/** What has been read of a reference so far. */
export interface SharedReferenceDraft {
  region: string | undefined;
  byteSize: number | undefined;
  offset: number | undefined;
}

/** The reference of a tensor's parameters, undefined where they name no region. @throws BAD_REQUEST when they do so in part */
export function sharedReference(draft: SharedReferenceDraft, owner: string): SharedReference | undefined {
  const { region, byteSize, offset } = draft;
  if (region !== undefined && byteSize !== undefined) return { region, byteSize, offset: offset ?? 0 };
  if (region === undefined && byteSize === undefined && offset === undefined) return undefined;
  const missing = region === undefined ? REGION_PARAMETER : BYTE_SIZE_PARAMETER;
  throw new BatchportError(
    'BAD_REQUEST',
    `${owner} has a tensor in shared memory, but no parameter '${missing}' to say where it is`,
  );
}

/** A place for an output. */
export interface SharedTarget {
  /** Writes the tensor at the start of the place. @throws BAD_TENSOR where it does not fit */
  write(data: Uint8Array): void;
}

/** The regions that clients have registered. */
export interface SharedMemory {
  /** The bytes of an input. @throws BAD_TENSOR where there are none such */
  source(reference: SharedReference, owner: string): TensorSource;
  /** The same in memory of their own, for what has to be looked at before it is used. @throws BAD_TENSOR */
  read(reference: SharedReference, owner: string): Uint8Array;
  /** @throws BAD_TENSOR where there is no such place */
  target(reference: SharedReference, owner: string): SharedTarget;
}

/** Of a server that takes no tensors from there. */
export const NO_SHARED_MEMORY: SharedMemory = { source: refuse, read: refuse, target: refuse };

function refuse(_reference: SharedReference, owner: string): never {
  throw new BatchportError(
    'BAD_REQUEST',
    `${owner} has a tensor in shared memory, which this server does not use; start it with --system-shared-memory`,
  );
}

const NO_BYTES = new Uint8Array(0);

/**
 * Writes the outputs that have a place of their own there.
 *
 * @param targets one per output, undefined for those that go into the answer; none where all do.
 * @returns the outputs, those that were written without their bytes.
 * @throws BAD_TENSOR
 */
export function writeShared(
  outputs: readonly OutputTensor[],
  targets: readonly (SharedTarget | undefined)[],
): OutputTensor[] {
  return outputs.map((output, n) => {
    const target = targets[n];
    if (target === undefined) return output;
    target.write(output.data);
    return { shape: output.shape, data: NO_BYTES, elsewhere: true };
  });
}
