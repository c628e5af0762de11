/**
 * How the tensors of one shape key lie in a slab. Built alike by producers (from a request) and by instances (from the key stored in the slab).
 *
 *     [key][heap references][input 0: capacity × rowBytes][input 1 …][outputs of known shape …][heap of BYTES elements]
 *
 * Each part starts on a 64-byte boundary. A row of a fixed-size input has one place for ever, so a batch is gathered by nobody. BYTES inputs live in the
 * heap in the protocol's serialised form, found through one (offset, length) pair per claim and input. Outputs whose shape follows from the key are
 * bound here; the others get a result region after the run (see result.ts).
 */
import { type Datatype, datatypeInfo } from '../tensor/datatype.ts';
import { elementCount } from '../tensor/shape.ts';
import type { ModelSignature, TensorSpec } from '../tensor/signature.ts';
import { BLOCK_BYTES, LINE_BYTES } from './geometry.ts';
import { PRIORITY_LEVELS_MAX } from './states.ts';

/** One input of a layout, or an output of known shape. */
export interface LayoutTensor {
  /** Index in the signature. */
  readonly index: number;
  readonly datatype: Datatype;
  /** Dimensions of a row; of the whole tensor when the layout is not batched. */
  readonly dims: readonly number[];
  /** Elements of a row. */
  readonly rowElements: number;
  /** Bytes of a row; 0 for BYTES. */
  readonly rowBytes: number;
}

/** An output: `tensor` is undefined when its shape is known only after the run. */
export interface LayoutOutput {
  readonly index: number;
  readonly tensor: LayoutTensor | undefined;
}

/** Offsets within a slab's region for one capacity. */
export interface Placement {
  readonly capacityRows: number;
  readonly heapReferences: number;
  readonly inputs: readonly number[];
  /** Parallel to `layout.outputs`; 0 where unknown. */
  readonly outputs: readonly number[];
  readonly heap: number;
  readonly heapBytes: number;
  readonly totalBytes: number;
  readonly blocks: number;
}

const PLACEMENTS_CACHED = 8;

function align(bytes: number): number {
  return Math.ceil(bytes / LINE_BYTES) * LINE_BYTES;
}

export class SlabLayout {
  /** The key: whole, outputs, rank and dimensions of each input, priority, as doubles. */
  readonly key: Uint8Array;
  /** FNV-1a of the key without the priority, which makes no difference to a run; never 0. */
  readonly hash: number;
  /** 0 is the most urgent. Rows of different levels do not share a slab. */
  readonly level: number;
  readonly whole: boolean;
  readonly inputs: readonly LayoutTensor[];
  readonly outputs: readonly LayoutOutput[];
  /** Positions in `inputs` of the BYTES inputs. */
  readonly bytesInputs: readonly number[];
  readonly #claimsPerSlab: number;
  readonly #placements = new Map<number, Placement>();

  constructor(signature: ModelSignature, key: Uint8Array, claimsPerSlab: number) {
    const words = new Float64Array(key.slice().buffer);
    this.key = key;
    this.hash = fnv1a(key.subarray(0, key.length - 8));
    this.whole = words[0] === 1;
    this.#claimsPerSlab = claimsPerSlab;
    let at = 1;
    const outputCount = words[at++]!;
    const outputIndices: number[] = [];
    for (let n = 0; n < outputCount; n++) outputIndices.push(words[at++]!);
    const shapes: number[][] = [];
    for (let n = 0; n < signature.inputs.length; n++) {
      const rank = words[at++]!;
      const dims: number[] = [];
      for (let d = 0; d < rank; d++) dims.push(words[at++]!);
      shapes.push(dims);
    }
    this.level = words[at++] ?? -1;
    if (at !== words.length) throw new Error('a slab key does not fit the signature: this is a bug');
    if (!Number.isInteger(this.level) || this.level < 0 || this.level >= PRIORITY_LEVELS_MAX) {
      throw new Error('a slab key has no such priority: this is a bug');
    }
    this.inputs = signature.inputs.map((spec, index) => layoutTensor(index, spec.datatype, shapes[index]!));
    this.bytesInputs = this.inputs.flatMap((input, position) => (input.datatype === 'BYTES' ? [position] : []));
    this.outputs = outputIndices.map((index) => {
      const spec = signature.outputs[index];
      if (spec === undefined) throw new Error('a slab key names an output the model does not have: this is a bug');
      const dims = spec.datatype === 'BYTES' ? undefined : outputDims(spec, signature.inputs, shapes, this.whole);
      return {
        index,
        tensor: dims === undefined ? undefined : layoutTensor(index, spec.datatype, dims),
      };
    });
  }

  /** Bytes of one row, inputs and known outputs. */
  get rowBytes(): number {
    let bytes = 0;
    for (const input of this.inputs) bytes += input.rowBytes;
    for (const output of this.outputs) bytes += output.tensor?.rowBytes ?? 0;
    return bytes;
  }

  /** Places the tensors for a number of rows and bytes of heap. */
  place(capacityRows: number, heapBytes: number): Placement {
    const id = heapBytes * 8192 + capacityRows;
    const cached = this.#placements.get(id);
    if (cached !== undefined) return cached;
    let at = align(this.key.length);
    const take = (bytes: number): number => {
      const start = at;
      at = align(at + bytes);
      return start;
    };
    const heapReferences = take(this.bytesInputs.length * this.#claimsPerSlab * 16);
    const inputs = this.inputs.map((input) => take(input.rowBytes * capacityRows));
    const outputs = this.outputs.map(({ tensor }) => (tensor === undefined ? 0 : take(tensor.rowBytes * capacityRows)));
    const heap = take(heapBytes);
    // A region of a whole block more than nothing: tensors without elements still need an address inside it.
    const placement: Placement = {
      capacityRows,
      heapReferences,
      inputs,
      outputs,
      heap,
      heapBytes,
      totalBytes: at,
      blocks: Math.max(1, Math.ceil((at + 8) / BLOCK_BYTES)),
    };
    if (this.#placements.size >= PLACEMENTS_CACHED) this.#placements.clear();
    this.#placements.set(id, placement);
    return placement;
  }
}

function layoutTensor(index: number, datatype: Datatype, dims: readonly number[]): LayoutTensor {
  const rowElements = elementCount(dims);
  if (rowElements === undefined) throw new Error('a slab key has a malformed shape: this is a bug');
  return {
    index,
    datatype,
    dims,
    rowElements,
    rowBytes: rowElements * datatypeInfo(datatype).elementBytes,
  };
}

/** Encodes a key. Shapes are those of the rows, or full when `whole`. @param level of priority, 0 the most urgent */
export function encodeKey(
  whole: boolean,
  outputs: readonly number[],
  shapes: readonly (readonly number[])[],
  level = 0,
): Uint8Array {
  const words: number[] = [whole ? 1 : 0, outputs.length, ...outputs];
  for (const shape of shapes) words.push(shape.length, ...shape);
  words.push(level);
  return new Uint8Array(Float64Array.from(words).buffer);
}

/**
 * Shape of an output (of its row, unless whole) where the signature alone tells: each dimension fixed, or named like a dimension of an input.
 *
 * @returns undefined when it has to be learnt from the run.
 */
function outputDims(
  output: TensorSpec,
  inputs: readonly TensorSpec[],
  shapes: readonly (readonly number[])[],
  whole: boolean,
): number[] | undefined {
  const skip = whole ? 0 : 1;
  const known = new Map<string, number>();
  inputs.forEach((input, n) => {
    input.symbols.forEach((symbol, d) => {
      const dim = shapes[n]?.[d - skip];
      if (symbol !== '' && d >= skip && dim !== undefined) known.set(symbol, dim);
    });
  });
  const dims: number[] = [];
  for (let d = skip; d < output.shape.length; d++) {
    const dim = output.shape[d] === -1 ? known.get(output.symbols[d] ?? '') : output.shape[d];
    if (dim === undefined) return undefined;
    dims.push(dim);
  }
  return dims;
}

function fnv1a(bytes: Uint8Array): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < bytes.length; i++) hash = Math.imul(hash ^ bytes[i]!, 0x01000193);
  return hash | 1;
}
