/**
 * Tensors for a load whose contents do not matter: zeros, or seeded random values that most models take.
 *
 * Random: floats in [0, 1); 8-bit integers of their whole range, as pictures have; wider integers 0 or 1, which are valid token numbers, masks and flags;
 * strings of one digit. Zeros for strings are empty strings.
 */
import { ARRAYS } from '../client/data.ts';
import type { InferInput } from '../client/request.ts';
import { seededRandom } from '../scheduler/random.ts';
import type { Datatype } from '../tensor/datatype.ts';
import { bfloat16Bits, float16Bits } from '../tensor/float16.ts';
import { elementCount, formatShape } from '../tensor/shape.ts';

export type Contents = 'random' | 'zeros';

/** @param shape without open dimensions. @throws RangeError for a shape of too many elements */
export function madeUpInput(
  name: string,
  datatype: Datatype,
  shape: readonly number[],
  contents: Contents,
  seed: number,
): InferInput {
  const count = elementCount(shape);
  if (count === undefined) throw new RangeError(`${formatShape(shape)} has too many elements`);
  const element = contents === 'zeros' ? () => 0 : randomElement(datatype, seed);
  if (datatype === 'BYTES') {
    const data = Array.from({ length: count }, () => (contents === 'zeros' ? '' : String(element())));
    return { name, datatype, shape, data };
  }
  const data = new ARRAYS[datatype](count);
  if (data instanceof BigInt64Array || data instanceof BigUint64Array) {
    for (let i = 0; i < count; i++) data[i] = BigInt(element());
  } else {
    for (let i = 0; i < count; i++) data[i] = element();
  }
  return { name, datatype, shape, data } as InferInput;
}

function randomElement(datatype: Datatype, seed: number): () => number {
  const random = seededRandom(seed);
  switch (datatype) {
    case 'FP32':
    case 'FP64':
      return random;
    case 'FP16':
      return () => float16Bits(random());
    case 'BF16':
      return () => bfloat16Bits(random());
    case 'UINT8':
      return () => Math.floor(256 * random());
    case 'INT8':
      return () => Math.floor(256 * random()) - 128;
    case 'BYTES':
      return () => Math.floor(10 * random());
    default:
      return () => Math.floor(2 * random());
  }
}
