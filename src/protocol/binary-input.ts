/**
 * Checks on the bytes of a binary tensor: its size, and its content where not every byte pattern is a value.
 *
 * Any bytes are an integer or a float. A BOOL is one byte, 0 or 1, since what a model makes of another value is undefined; a BYTES
 * tensor is lengths and elements that must add up.
 */
import { BatchportError } from '../config/errors.ts';
import { bytesTensorFault } from '../tensor/bytes-tensor.ts';
import type { TensorSpec } from '../tensor/signature.ts';
import type { InterfaceChecks } from './model-interface.ts';

/** Whether `checkContent` has anything to look at. */
export function contentMatters(spec: TensorSpec): boolean {
  return spec.datatype === 'BYTES' || spec.datatype === 'BOOL';
}

/** @throws BAD_TENSOR when `data` is not `count` elements of the input. */
export function checkContent(spec: TensorSpec, count: number, data: Uint8Array): void {
  if (spec.datatype === 'BYTES') {
    const fault = bytesTensorFault(data, count);
    if (fault !== undefined) {
      throw new BatchportError('BAD_TENSOR', `input '${spec.name}' is not a serialised BYTES tensor: ${fault}`);
    }
  } else if (spec.datatype === 'BOOL') {
    for (let i = 0; i < data.length; i++) {
      if (data[i]! <= 1) continue;
      throw new BatchportError(
        'BAD_TENSOR',
        `input '${spec.name}': element ${i} is the byte ${data[i]}, but BOOL takes 0 or 1`,
      );
    }
  }
}

/**
 * Checks the size that a request declares for a binary input.
 *
 * @param bytes what the shape calls for, -1 for BYTES.
 * @throws BAD_TENSOR
 */
export function checkDeclaredSize(checks: InterfaceChecks, spec: TensorSpec, bytes: number, declared: number): void {
  if (bytes >= 0 && declared !== bytes) {
    throw new BatchportError(
      'BAD_TENSOR',
      `input byte size mismatch for input '${spec.name}' for model '${checks.model.name}': expected ${bytes} bytes, got ${declared}`,
    );
  }
  checks.checkBytes(spec, declared);
}
