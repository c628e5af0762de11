/**
 * Reads PNG pictures from people who are not trusted: everything but interlaced ones, to shades of grey on white.
 *
 * Source: the PNG specification, third edition. Limits come before memory: FILE_BYTES_MAX of file, SIDE_MAX and PIXELS_MAX of picture, and no more is inflated than the
 * header announces.
 */
import { crc32, inflateSync } from 'node:zlib';

const FILE_BYTES_MAX = 4 * 2 ** 20;
const SIDE_MAX = 8192;
const PIXELS_MAX = 4 * 2 ** 20;
const CHUNKS_MAX = 10_000;

const SIGNATURE = Buffer.from('89504e470d0a1a0a', 'hex');
const GREY = 0;
const RGB = 2;
const PALETTE = 3;
const GREY_ALPHA = 4;
const RGB_ALPHA = 6;
/** Samples of a pixel and the depths that there are, by kind of colour. */
const KINDS = new Map([
  [GREY, { samples: 1, depths: [1, 2, 4, 8, 16] }],
  [RGB, { samples: 3, depths: [8, 16] }],
  [PALETTE, { samples: 1, depths: [1, 2, 4, 8] }],
  [GREY_ALPHA, { samples: 2, depths: [8, 16] }],
  [RGB_ALPHA, { samples: 4, depths: [8, 16] }],
]);

/** What is wrong with a file. */
export class PngError extends Error {}

/**
 * @param {Uint8Array} bytes
 * @returns {{ width: number, height: number, grey: Float32Array }} row by row, 0 is black and 1 white.
 * @throws PngError
 */
export function readPng(bytes) {
  const file = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (file.length > FILE_BYTES_MAX) throw new PngError(`is larger than ${FILE_BYTES_MAX} bytes`);
  if (!file.subarray(0, 8).equals(SIGNATURE)) throw new PngError('is no PNG file');
  const { header, palette, data } = readChunks(file);
  const { width, height, depth, samples } = header;
  const rowBytes = Math.ceil((width * samples * depth) / 8);
  const rows = inflated(data, height * (1 + rowBytes));
  unfilter(rows, height, rowBytes, Math.max(1, (samples * depth) / 8));
  const grey = new Float32Array(width * height);
  for (let y = 0; y < height; y++) {
    const row = rows.subarray(y * (1 + rowBytes) + 1, (y + 1) * (1 + rowBytes));
    for (let x = 0; x < width; x++) grey[y * width + x] = shadeOf(row, x, header, palette);
  }
  return { width, height, grey };
}

function readChunks(file) {
  let header;
  let palette;
  const data = [];
  let at = SIGNATURE.length;
  for (let n = 0; n < CHUNKS_MAX; n++) {
    if (file.length - at < 12) throw new PngError('ends before its end');
    const length = file.readUInt32BE(at);
    if (length > file.length - at - 12) throw new PngError('ends before its end');
    const type = file.toString('latin1', at + 4, at + 8);
    const content = file.subarray(at + 8, at + 8 + length);
    if (crc32(file.subarray(at + 4, at + 8 + length)) !== file.readUInt32BE(at + 8 + length)) {
      throw new PngError('is damaged: a checksum is wrong');
    }
    at += 12 + length;
    if ((header === undefined) !== (type === 'IHDR')) throw new PngError('has no header, or more than one');
    if (type === 'IHDR') header = readHeader(content);
    else if (type === 'PLTE') palette = content;
    else if (type === 'IDAT') data.push(content);
    else if (type === 'IEND') {
      if (header.kind === PALETTE && palette === undefined) throw new PngError('has no palette');
      return { header, palette, data: Buffer.concat(data) };
    }
  }
  throw new PngError(`has more than ${CHUNKS_MAX} chunks`);
}

function readHeader(content) {
  if (content.length !== 13) throw new PngError('has a malformed header');
  const [width, height] = [content.readUInt32BE(0), content.readUInt32BE(4)];
  const [depth, kind, compression, filter, interlace] = content.subarray(8);
  const { samples, depths } = KINDS.get(kind) ?? { samples: 0, depths: [] };
  if (!depths.includes(depth) || compression !== 0 || filter !== 0) throw new PngError('has a malformed header');
  if (interlace !== 0) throw new PngError('is interlaced, which is not supported');
  if (width === 0 || height === 0) throw new PngError('has no pixels');
  if (width > SIDE_MAX || height > SIDE_MAX || width * height > PIXELS_MAX) {
    throw new PngError(`has ${width} × ${height} pixels; at most ${PIXELS_MAX}, and ${SIDE_MAX} a side, are taken`);
  }
  return { width, height, depth, kind, samples };
}

function inflated(data, length) {
  let rows;
  try {
    rows = inflateSync(data, { maxOutputLength: length });
  } catch (error) {
    throw new PngError(error.code === 'ERR_BUFFER_TOO_LARGE' ? 'holds more pixels than it says' : 'has damaged pixels');
  }
  if (rows.length !== length) throw new PngError('holds fewer pixels than it says');
  return rows;
}

/** Undoes the filters of all rows, in place. @param step bytes from a pixel to the one before it */
function unfilter(rows, height, rowBytes, step) {
  for (let y = 0; y < height; y++) {
    const start = y * (1 + rowBytes) + 1;
    const filter = rows[start - 1];
    if (filter > 4) throw new PngError('has damaged pixels');
    for (let n = 0; n < rowBytes && filter > 0; n++) {
      const left = n >= step ? rows[start + n - step] : 0;
      const up = y > 0 ? rows[start + n - rowBytes - 1] : 0;
      const before = n >= step && y > 0 ? rows[start + n - step - rowBytes - 1] : 0;
      rows[start + n] += predicted(filter, left, up, before);
    }
  }
}

function predicted(filter, left, up, before) {
  if (filter === 1) return left;
  if (filter === 2) return up;
  if (filter === 3) return (left + up) >> 1;
  const guess = left + up - before;
  const [toLeft, toUp, toBefore] = [Math.abs(guess - left), Math.abs(guess - up), Math.abs(guess - before)];
  if (toLeft <= toUp && toLeft <= toBefore) return left;
  return toUp <= toBefore ? up : before;
}

function shadeOf(row, x, { depth, kind, samples }, palette) {
  const at = x * samples;
  if (kind === PALETTE) {
    const entry = 3 * sampleAt(row, at, depth);
    if (entry + 2 >= palette.length) throw new PngError('names a colour that its palette lacks');
    return lightness(palette[entry] / 255, palette[entry + 1] / 255, palette[entry + 2] / 255);
  }
  const of = (n) => sampleAt(row, at + n, depth) / (2 ** depth - 1);
  const coloured = kind === RGB || kind === RGB_ALPHA;
  const shade = coloured ? lightness(of(0), of(1), of(2)) : of(0);
  const alpha = kind === GREY_ALPHA || kind === RGB_ALPHA ? of(samples - 1) : 1;
  return 1 - alpha * (1 - shade);
}

function sampleAt(row, n, depth) {
  if (depth === 8) return row[n];
  if (depth === 16) return (row[2 * n] << 8) | row[2 * n + 1];
  const bit = n * depth;
  return (row[bit >> 3] >> (8 - depth - (bit & 7))) & (2 ** depth - 1);
}

/** Rec. 601. */
function lightness(red, green, blue) {
  return 0.299 * red + 0.587 * green + 0.114 * blue;
}
