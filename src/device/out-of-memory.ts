/**
 * Telling a lack of memory from a model's own failure: ONNX Runtime gives both the same code, so its wording has to do.
 */
import type { OrtError } from '../runtime/ort-error.ts';

/** Fragments of the messages of the arena, the CUDA provider and the C++ library. */
const FRAGMENTS = [
  'is smaller than requested bytes of',
  'Failed to allocate memory',
  'out of memory',
  'CUDA_ERROR_OUT_OF_MEMORY',
  'CUBLAS_STATUS_ALLOC_FAILED',
  'std::bad_alloc',
] as const;

/** Whether a run failed for want of memory: a smaller batch may work. */
export function isOutOfMemory(error: OrtError): boolean {
  return FRAGMENTS.some((fragment) => error.message.includes(fragment));
}
