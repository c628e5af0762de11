/** .npy files: what NumPy writes is read exactly, what is broken is refused, and what is written is what NumPy writes. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BatchportError } from '../../../src/config/errors.ts';
import { readNpy, writeNpy } from '../../../src/tensor/npy.ts';

/** A file from its parts; the header is padded as NumPy pads it unless `exact`. */
function npy(header: string, data: Uint8Array, version = 1): Uint8Array {
  const lengthBytes = version === 1 ? 2 : 4;
  const total = Math.ceil((8 + lengthBytes + header.length + 1) / 64) * 64;
  const padded = `${header.padEnd(total - 8 - lengthBytes - 1)}\n`;
  const start = Buffer.alloc(8 + lengthBytes);
  start.write('\x93NUMPY', 'latin1');
  start[6] = version;
  if (version === 1) start.writeUInt16LE(padded.length, 8);
  else start.writeUInt32LE(padded.length, 8);
  return Buffer.concat([start, Buffer.from(padded, 'latin1'), data]);
}

function header(descr: string, shape: string, fortran = 'False'): string {
  return `{'descr': '${descr}', 'fortran_order': ${fortran}, 'shape': ${shape}, }`;
}

function assertRefused(file: Uint8Array, message: RegExp): void {
  assert.throws(
    () => readNpy(file),
    (error) => error instanceof BatchportError && error.code === 'BAD_TENSOR' && message.test(error.message),
  );
}

const bytes = (...values: number[]): Uint8Array => Uint8Array.from(values);

test('every plain dtype is read as its datatype', () => {
  const expected = {
    '|b1': ['BOOL', 1],
    '|i1': ['INT8', 1],
    '<i2': ['INT16', 2],
    '<i4': ['INT32', 4],
    '<i8': ['INT64', 8],
    '|u1': ['UINT8', 1],
    '<u2': ['UINT16', 2],
    '<u4': ['UINT32', 4],
    '<u8': ['UINT64', 8],
    '<f2': ['FP16', 2],
    '<f4': ['FP32', 4],
    '<f8': ['FP64', 8],
  } as const;
  for (const [descr, [datatype, elementBytes]] of Object.entries(expected)) {
    const data = Uint8Array.from({ length: 3 * elementBytes }, (_, i) => i);
    assert.deepEqual(readNpy(npy(header(descr, '(3,)'), data)), { datatype, shape: [3], data: Buffer.from(data) });
  }
});

test('format versions 1.0, 2.0 and 3.0 give the same tensor', () => {
  for (const version of [1, 2, 3]) {
    const tensor = readNpy(npy(header('<i2', '(2, 1)'), bytes(1, 0, 2, 0), version));
    assert.deepEqual([tensor.datatype, tensor.shape, [...tensor.data]], ['INT16', [2, 1], [1, 0, 2, 0]]);
  }
});

test('big-endian elements come out little-endian', () => {
  assert.deepEqual([...readNpy(npy(header('>i2', '(2,)'), bytes(0, 1, 0, 2))).data], [1, 0, 2, 0]);
  assert.deepEqual([...readNpy(npy(header('>f4', '()'), bytes(1, 2, 3, 4))).data], [4, 3, 2, 1]);
  assert.deepEqual(
    [...readNpy(npy(header('>u8', '(1,)'), bytes(1, 2, 3, 4, 5, 6, 7, 8))).data],
    [8, 7, 6, 5, 4, 3, 2, 1],
  );
});

test('column-major elements come out row-major, for any rank', () => {
  // np.asfortranarray([[0,1,2],[3,4,5]]) stores 0 3 1 4 2 5.
  const matrix = readNpy(npy(header('|u1', '(2, 3)', 'True'), bytes(0, 3, 1, 4, 2, 5)));
  assert.deepEqual([...matrix.data], [0, 1, 2, 3, 4, 5]);

  const shape = [2, 3, 4];
  const column = new Uint16Array(24);
  for (let i = 0; i < 2; i++) {
    for (let j = 0; j < 3; j++) for (let k = 0; k < 4; k++) column[i + 2 * j + 6 * k] = i * 12 + j * 4 + k;
  }
  const cube = readNpy(npy(header('<u2', '(2, 3, 4)', 'True'), new Uint8Array(column.buffer)));
  assert.deepEqual(cube.shape, shape);
  assert.deepEqual([...new Uint16Array(cube.data.slice().buffer)], [...Array(24).keys()]);
});

test('scalars and tensors without elements are read', () => {
  assert.deepEqual(readNpy(npy(header('<f8', '()'), new Uint8Array(8))).shape, []);
  const empty = readNpy(npy(header('<f8', '(0, 5)', 'True'), new Uint8Array(0)));
  assert.deepEqual([empty.shape, empty.data.length], [[0, 5], 0]);
});

test('keys may come in any order and in double quotes', () => {
  const text = `{"shape":(1,),"fortran_order":False,"descr":"|u1"}`;
  assert.deepEqual([...readNpy(npy(text, bytes(7))).data], [7]);
});

test('a view at an odd offset of a larger buffer is read in place', () => {
  const file = npy(header('<i4', '(1,)'), bytes(1, 2, 3, 4));
  const larger = new Uint8Array(file.length + 3);
  larger.set(file, 3);
  assert.deepEqual([...readNpy(larger.subarray(3)).data], [1, 2, 3, 4]);
});

test('types the protocol does not have are refused with what to do', () => {
  assertRefused(npy(header('|O', '(1,)'), bytes(1)), /never unpickled/);
  assertRefused(npy(header('<U3', '(1,)'), bytes(1)), /texts .* JSON/);
  assertRefused(npy(header('<c8', '(1,)'), bytes(1)), /dtype "<c8"; known are b1/);
  assertRefused(npy(header('|f4', '(1,)'), bytes(1, 2, 3, 4)), /dtype "\|f4"/);
  const records = `{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1,), }`;
  assertRefused(npy(records, bytes(1, 2, 3, 4)), /structured dtype/);
});

test('a file that is cut short or too long is refused, at every length', () => {
  const file = npy(header('<i2', '(2,)'), bytes(1, 0, 2, 0));
  for (let length = 0; length < file.length; length++) {
    assertRefused(file.subarray(0, length), /is not a \.npy file|ends within its header|takes 4 bytes, but holds/);
  }
  assertRefused(Buffer.concat([file, bytes(0)]), /takes 4 bytes, but holds 5/);
});

test('malformed headers are refused', () => {
  const broken = [
    '',
    '[]',
    '{}',
    header('|u1', '(1)'),
    header('|u1', '(-1,)'),
    header('|u1', '[1]'),
    header('|u1', '(1,)', 'false'),
    header('|u1', '(1,)', '__import__("os")'),
    `${header('|u1', '(1,)')} 1`,
    `{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (1,), }`,
    `{'descr': '|u1', 'fortran_order': False, 'shape': (1,), 'extra': 1}`,
    `{'descr': '|u1', 'shape': (1,), }`,
    `{'descr': '|u1' 'fortran_order': False, 'shape': (1,), }`,
  ];
  for (const text of broken) assertRefused(npy(text, bytes(1)), /header/);
  assertRefused(npy(header('|u1', `(${'1, '.repeat(65)})`), bytes(1)), /more than 64 dimensions/);
});

test('a version or a header length out of bounds is refused before anything is read', () => {
  assertRefused(npy(header('|u1', '(1,)'), bytes(1), 4), /version 4\.0/);
  const long = Buffer.alloc(100);
  long.write('\x93NUMPY\x02\x00', 'latin1');
  long.writeUInt32LE(0xffff_ffff, 8);
  assertRefused(long, /header of 4294967295 bytes/);
});

test('dimensions whose product overflows are refused', () => {
  assertRefused(npy(header('|u1', '(9007199254740991, 9007199254740991)'), bytes(1)), /takes Infinity bytes/);
});

test('what is written is what NumPy writes, and reads back', () => {
  const data = bytes(0, 0, 0x80, 0x3f, 0, 0, 0, 0x40);
  const file = Buffer.from(writeNpy('FP32', [2, 1], data));
  const text = `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }`;
  assert.equal(file.subarray(0, 10).toString('latin1'), '\x93NUMPY\x01\x00\x76\x00');
  assert.equal(file.subarray(10, 128).toString('latin1'), `${text.padEnd(117)}\n`);
  assert.deepEqual([...file.subarray(128)], [...data]);
  for (const shape of [[], [8], [2, 4], [0, 3]]) {
    const elements = new Uint8Array(shape.reduce((a, b) => a * b, 1));
    const tensor = readNpy(writeNpy('BOOL', shape, elements));
    assert.deepEqual([tensor.datatype, tensor.shape, tensor.data.length], ['BOOL', shape, elements.length]);
  }
});

test('BF16 and BYTES cannot be written', () => {
  for (const datatype of ['BF16', 'BYTES'] as const) {
    assert.throws(() => writeNpy(datatype, [1], bytes(0, 0)), { code: 'NOT_SUPPORTED' });
  }
});
