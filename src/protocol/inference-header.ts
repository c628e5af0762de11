/**
 * The HTTP header `Inference-Header-Content-Length`: how many bytes of a body are JSON; the rest are tensors.
 *
 * It is a length that a client chose, so only plain digits pass: no sign, no hexadecimal, no list made of a repeated header.
 * Source: the binary tensor data extension of the protocol.
 */
import { BatchportError } from '../config/errors.ts';

/**
 * @param values every value of the header, one per time it was sent; empty when it was not sent.
 * @param bodyBytes size of the body after decompression.
 * @returns bytes of JSON at the start of the body, 0 for a raw binary request, undefined when the whole body is JSON.
 * @throws BAD_REQUEST
 */
export function parseInferenceHeaderLength(values: readonly string[], bodyBytes: number): number | undefined {
  if (values.length === 0) return undefined;
  if (values.length > 1) {
    throw new BatchportError('BAD_REQUEST', 'Inference-Header-Content-Length was sent more than once; send it once');
  }
  const text = values[0]!;
  let length = text.length === 0 ? Number.NaN : 0;
  for (let i = 0; i < text.length; i++) {
    const digit = text.charCodeAt(i) - 48;
    if (digit < 0 || digit > 9) length = Number.NaN;
    length = length * 10 + digit;
  }
  if (Number.isNaN(length)) {
    throw new BatchportError(
      'BAD_REQUEST',
      `Inference-Header-Content-Length must be a number of bytes in decimal digits, got '${text.slice(0, 40)}'`,
    );
  }
  if (length > bodyBytes) {
    throw new BatchportError(
      'BAD_REQUEST',
      `inference header size should be in range (0, ${bodyBytes}), the size of the body, got ${text.slice(0, 40)}`,
    );
  }
  return length;
}
