/**
 * Shapes: arrays of dimensions, row-major. `-1` stands for a variable dimension in a signature and never in a request.
 */

/**
 * Number of elements of a concrete shape: the product of its dimensions, 1 for a scalar (`[]`), 0 if any is 0.
 *
 * @returns undefined when a dimension is negative or not an integer, or the product passes 2^53 − 1.
 */
export function elementCount(shape: readonly number[]): number | undefined {
  let count = 1;
  let zero = false;
  for (const dim of shape) {
    if (!Number.isSafeInteger(dim) || dim < 0) return undefined;
    if (dim === 0) zero = true;
    else {
      count *= dim;
      if (count > Number.MAX_SAFE_INTEGER) return undefined;
    }
  }
  return zero ? 0 : count;
}

/** Whether a concrete shape fits a signature's shape: same rank, and equal wherever the signature is fixed. */
export function shapeFits(shape: readonly number[], spec: readonly number[]): boolean {
  if (shape.length !== spec.length) return false;
  for (let i = 0; i < spec.length; i++) if (spec[i] !== -1 && spec[i] !== shape[i]) return false;
  return true;
}

/** `[1,3,-1]`, as messages print it. */
export function formatShape(shape: readonly number[]): string {
  return `[${shape.join(',')}]`;
}
