/**
 * Tensors in NumPy's .npy files, format versions 1.0 to 3.0.
 *
 * Source: the format's specification, NEP 1 and `numpy.lib.format`: magic `\x93NUMPY`, two version bytes, a little-endian
 * header length (2 bytes in version 1, 4 later), a Python dictionary literal with exactly the keys descr, fortran_order
 * and shape, then the elements.
 * Invariant: what `readNpy` returns is row-major and little-endian, whatever the file was. The header is read by a
 * tokenizer for that one literal; nothing in it is evaluated.
 * Bounds: HEADER_BYTES_MAX, RANK_MAX; the elements must fill the rest of the file exactly.
 */

import { BatchportError } from '../config/errors.ts';
import { type Datatype, datatypeInfo } from './datatype.ts';
import { elementCount, formatShape } from './shape.ts';

export interface NpyTensor {
  readonly datatype: Datatype;
  readonly shape: readonly number[];
  /** Elements, row-major, little-endian, `elementCount(shape) * elementBytes` long. */
  readonly data: Uint8Array;
}

const MAGIC = Uint8Array.of(0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59);
const HEADER_BYTES_MAX = 65_536;
/** NumPy 2's own limit. */
const RANK_MAX = 64;
/** Elements begin at a multiple of this, so that they can be mapped. */
const ALIGN_BYTES = 64;

const datatypeOfDescr: ReadonlyMap<string, Datatype> = new Map([
  ['b1', 'BOOL'],
  ['i1', 'INT8'],
  ['i2', 'INT16'],
  ['i4', 'INT32'],
  ['i8', 'INT64'],
  ['u1', 'UINT8'],
  ['u2', 'UINT16'],
  ['u4', 'UINT32'],
  ['u8', 'UINT64'],
  ['f2', 'FP16'],
  ['f4', 'FP32'],
  ['f8', 'FP64'],
]);
const descrOfDatatype = new Map([...datatypeOfDescr].map(([descr, datatype]) => [datatype, descr]));

/**
 * Reads a .npy file held in memory. `data` is a view of `file` where it already lies as wanted, a copy otherwise.
 *
 * @throws BatchportError BAD_TENSOR when it is not such a file, cut short, or of a type the protocol does not have.
 */
export function readNpy(file: Uint8Array): NpyTensor {
  if (file.length < 10 || MAGIC.some((byte, i) => file[i] !== byte)) fail('is not a .npy file');
  const major = file[6]!;
  const minor = file[7]!;
  if (major < 1 || major > 3 || minor !== 0) fail(`has format version ${major}.${minor}; 1.0, 2.0 and 3.0 are read`);
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const lengthBytes = major === 1 ? 2 : 4;
  if (file.length < 8 + lengthBytes) fail('ends within its header');
  const headerBytes = major === 1 ? view.getUint16(8, true) : view.getUint32(8, true);
  if (headerBytes > HEADER_BYTES_MAX)
    fail(`has a header of ${headerBytes} bytes; at most ${HEADER_BYTES_MAX} are read`);
  const headerAt = 8 + lengthBytes;
  const dataAt = headerAt + headerBytes;
  if (file.length < dataAt) fail('ends within its header');

  // Latin-1 before version 3, UTF-8 since; a header of the three known keys is ASCII in both.
  const text = Buffer.from(file.buffer, file.byteOffset + headerAt, headerBytes).toString('latin1');
  const { descr, fortranOrder, shape } = new HeaderReader(text).read();
  const { datatype, bigEndian } = parseDescr(descr);

  const { elementBytes } = datatypeInfo(datatype);
  const count = elementCount(shape);
  const wanted = (count ?? Number.POSITIVE_INFINITY) * elementBytes;
  const found = file.length - dataAt;
  if (wanted !== found) {
    fail(`has shape ${formatShape(shape)} of ${datatype}, which takes ${wanted} bytes, but holds ${found}`);
  }
  let data = file.subarray(dataAt);
  if (bigEndian && elementBytes > 1) data = swapped(data, elementBytes);
  if (fortranOrder) data = rowMajor(data, shape, elementBytes);
  return { datatype, shape, data };
}

/**
 * Writes a tensor as a .npy file, version 1.0, row-major, little-endian.
 *
 * @param data elements as `readNpy` gives them; copied.
 * @throws BatchportError NOT_SUPPORTED for BF16 and BYTES, which NumPy has no plain type for.
 */
export function writeNpy(datatype: Datatype, shape: readonly number[], data: Uint8Array): Uint8Array {
  const descr = descrOfDatatype.get(datatype);
  if (descr === undefined) throw new BatchportError('NOT_SUPPORTED', `a .npy file cannot hold ${datatype}`);
  const { elementBytes } = datatypeInfo(datatype);
  if (shape.length > RANK_MAX || data.byteLength !== (elementCount(shape) ?? -1) * elementBytes) {
    throw new RangeError(`${data.byteLength} bytes are not ${formatShape(shape)} of ${datatype}`);
  }
  const order = elementBytes === 1 ? '|' : '<';
  const tuple = shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(', ')})`;
  const literal = `{'descr': '${order}${descr}', 'fortran_order': False, 'shape': ${tuple}, }`;
  const dataAt = Math.ceil((10 + literal.length + 1) / ALIGN_BYTES) * ALIGN_BYTES;

  const file = Buffer.alloc(dataAt + data.byteLength, ' ');
  file.set(MAGIC, 0);
  file[6] = 1;
  file[7] = 0;
  file.writeUInt16LE(dataAt - 10, 8);
  file.write(literal, 10, 'latin1');
  file[dataAt - 1] = 0x0a;
  file.set(data, dataAt);
  return file;
}

function fail(what: string): never {
  throw new BatchportError('BAD_TENSOR', `the .npy file ${what}`);
}

function parseDescr(descr: string): { datatype: Datatype; bigEndian: boolean } {
  const order = descr[0]!;
  const datatype = datatypeOfDescr.get(descr.slice(1));
  const oneByte = descr.endsWith('1');
  if (datatype === undefined || !(order === '<' || order === '>' || (order === '|' && oneByte))) {
    const kind = descr[1];
    const why =
      kind === 'O'
        ? 'holds Python objects (dtype object), which are never unpickled'
        : kind === 'S' || kind === 'U'
          ? `holds texts (dtype ${descr}); give them as JSON instead`
          : `has dtype ${JSON.stringify(descr)}; known are ${[...datatypeOfDescr.keys()].join(', ')}`;
    fail(why);
  }
  return { datatype, bigEndian: order === '>' };
}

function swapped(data: Uint8Array, elementBytes: number): Uint8Array {
  const copy = Buffer.from(data);
  if (elementBytes === 2) return copy.swap16();
  return elementBytes === 4 ? copy.swap32() : copy.swap64();
}

/** Copies column-major elements into row-major order: walks the result in order, the source by strides. */
function rowMajor(data: Uint8Array, shape: readonly number[], elementBytes: number): Uint8Array {
  const result = new Uint8Array(data.length);
  const rank = shape.length;
  const strides = new Array<number>(rank);
  let stride = elementBytes;
  for (let axis = 0; axis < rank; axis++) {
    strides[axis] = stride;
    stride *= shape[axis]!;
  }
  const index = new Array<number>(rank).fill(0);
  let source = 0;
  for (let at = 0; at < result.length; at += elementBytes) {
    for (let byte = 0; byte < elementBytes; byte++) result[at + byte] = data[source + byte]!;
    for (let axis = rank - 1; axis >= 0; axis--) {
      source += strides[axis]!;
      if (++index[axis]! < shape[axis]!) break;
      source -= strides[axis]! * shape[axis]!;
      index[axis] = 0;
    }
  }
  return result;
}

interface Header {
  readonly descr: string;
  readonly fortranOrder: boolean;
  readonly shape: readonly number[];
}

/** Reads the one dictionary literal that a header is: three keys in any order, padded with blanks. */
class HeaderReader {
  readonly #text: string;
  #at = 0;

  constructor(text: string) {
    this.#text = text;
  }

  read(): Header {
    let descr: string | undefined;
    let fortranOrder: boolean | undefined;
    let shape: readonly number[] | undefined;
    this.#expect('{');
    while (!this.#take('}')) {
      const key = this.#string();
      this.#expect(':');
      if (key === 'descr' && descr === undefined) descr = this.#descr();
      else if (key === 'fortran_order' && fortranOrder === undefined) fortranOrder = this.#boolean();
      else if (key === 'shape' && shape === undefined) shape = this.#tuple();
      else fail(`has an unexpected ${JSON.stringify(key)} in its header`);
      if (this.#take(',')) continue;
      this.#expect('}');
      break;
    }
    this.#skipBlanks();
    if (this.#at !== this.#text.length) this.#malformed();
    if (descr === undefined || fortranOrder === undefined || shape === undefined) {
      fail('lacks descr, fortran_order or shape in its header');
    }
    return { descr, fortranOrder, shape };
  }

  #descr(): string {
    this.#skipBlanks();
    if (this.#text[this.#at] === '[') fail('holds records (a structured dtype); give one plain array');
    return this.#string();
  }

  #string(): string {
    const match = this.#match(/'([^'\\\n]{1,32})'|"([^"\\\n]{1,32})"/y);
    return match[1] ?? match[2]!;
  }

  #boolean(): boolean {
    return this.#match(/True|False/y)[0] === 'True';
  }

  #tuple(): number[] {
    const shape: number[] = [];
    this.#expect('(');
    while (!this.#take(')')) {
      const dim = Number(this.#match(/[0-9]{1,16}/y)[0]);
      if (shape.push(dim) > RANK_MAX) fail(`has more than ${RANK_MAX} dimensions`);
      if (this.#take(',')) continue;
      // Without its comma, (3) would be a number and not a tuple.
      if (shape.length === 1) this.#malformed();
      this.#expect(')');
      break;
    }
    return shape;
  }

  #match(pattern: RegExp): RegExpExecArray {
    this.#skipBlanks();
    pattern.lastIndex = this.#at;
    const match = pattern.exec(this.#text) ?? this.#malformed();
    this.#at += match[0].length;
    return match;
  }

  #expect(character: string): void {
    if (!this.#take(character)) this.#malformed();
  }

  #take(character: string): boolean {
    this.#skipBlanks();
    if (this.#text[this.#at] !== character) return false;
    this.#at++;
    return true;
  }

  #skipBlanks(): void {
    while (this.#text[this.#at] === ' ' || this.#text[this.#at] === '\n') this.#at++;
  }

  #malformed(): never {
    fail(`has a malformed header at character ${this.#at}`);
  }
}
