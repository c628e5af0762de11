/**
 * Telling a lack of memory from a model's own failure: ONNX Runtime gives both the same code, so its wording has to do.
 */
import { OrtError } from '../runtime/ort-error.ts';

/** The arena has reached its limit. */
const ARENA_LIMIT = 'is smaller than requested bytes of';

/** Fragments of the messages of the arena, the CUDA provider and the C++ library. */
const FRAGMENTS = [
  ARENA_LIMIT,
  'Failed to allocate memory',
  'out of memory',
  'CUDA_ERROR_OUT_OF_MEMORY',
  'CUBLAS_STATUS_ALLOC_FAILED',
  'std::bad_alloc',
] as const;

/** Whether a run failed for want of memory: a smaller batch may work. */
export function isOutOfMemory(error: unknown): error is OrtError {
  return error instanceof OrtError && FRAGMENTS.some((fragment) => error.message.includes(fragment));
}

/** Whether it was the arena's own limit that a run met, and not the end of the device's memory, which others may have taken. */
export function isArenaLimit(error: unknown): boolean {
  return error instanceof OrtError && error.message.includes(ARENA_LIMIT);
}
