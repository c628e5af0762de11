/**
 * Made-up rows for the batchability probe: modest values that most models accept, different from row to row, always the same.
 *
 * Pseudo-random numbers, seeded by input and row.
 */
import { seededRandom } from '../scheduler/random.ts';
import type { Datatype } from '../tensor/datatype.ts';
import { bfloat16Bits, float16Bits } from '../tensor/float16.ts';

/**
 * Ranges of values. Zero and one suit token numbers, masks and flags whatever their range; one and two spare those who divide;
 * floats lie between 0 and 1 in both. `wide` sets rows further apart: integers to 7, floats from -12 to 12, another scale per row.
 */
export type ProbeMode = 'from zero' | 'from one' | 'wide';

/**
 * Fills `target` with one row of `elements` elements. For BYTES nothing is written and the elements are returned: decimal digits,
 * which a model that takes words accepts as well as one that parses numbers.
 *
 * Element 0 differs between neighbouring rows, so that rows of a single element differ too.
 */
export function fillProbeRow(
  datatype: Datatype,
  mode: ProbeMode,
  input: number,
  row: number,
  elements: number,
  target: Uint8Array,
): Uint8Array[] {
  const random = seededRandom(input * 1000 + row + 1);
  // Inputs differ in it too, so that a difference or a quotient of two changes from row to row.
  const first = (input + row) % 2;
  const base = mode === 'from one' ? 1 : 0;
  const integer = (i: number): number => {
    const value = random();
    return mode === 'wide' ? Math.floor(8 * value) : base + (i === 0 ? first : Math.round(value));
  };
  const float = (i: number): number => {
    const value = random();
    if (mode === 'wide') return (row + 1) * (8 * value - 4);
    return i === 0 ? 0.25 * (row + 1) : 0.05 + 0.9 * value;
  };
  switch (datatype) {
    case 'BYTES':
      return Array.from({ length: elements }, (_, i) =>
        Buffer.from(String(i === 0 ? 1 + row : Math.floor(10 * random()))),
      );
    case 'FP64': {
      const data = new Float64Array(target.buffer, target.byteOffset, elements);
      for (let i = 0; i < elements; i++) data[i] = float(i);
      return [];
    }
    case 'FP32': {
      const data = new Float32Array(target.buffer, target.byteOffset, elements);
      for (let i = 0; i < elements; i++) data[i] = float(i);
      return [];
    }
    case 'FP16':
    case 'BF16': {
      const bits = datatype === 'FP16' ? float16Bits : bfloat16Bits;
      const data = new Uint16Array(target.buffer, target.byteOffset, elements);
      for (let i = 0; i < elements; i++) data[i] = bits(float(i));
      return [];
    }
    case 'BOOL':
      for (let i = 0; i < elements; i++) target[i] = i === 0 ? first : Math.round(random());
      return [];
    default: {
      // Small non-negative integers of any width: the lowest byte, little-endian, and zeros.
      target.fill(0);
      const width = elements === 0 ? 1 : target.byteLength / elements;
      for (let i = 0; i < elements; i++) target[i * width] = integer(i);
      return [];
    }
  }
}
