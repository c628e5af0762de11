/** The PNG reader of the demo: every kind of picture as it was written, and files that mean harm. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { before, test } from 'node:test';
import { pathToFileURL } from 'node:url';
import { crc32, deflateSync } from 'node:zlib';
import { type Random, seedFromEnv } from '../../support/random.ts';
import { PROJECT_DIR } from '../../support/server.ts';

interface Picture {
  readonly width: number;
  readonly height: number;
  readonly grey: Float32Array;
}

let readPng: (bytes: Uint8Array) => Picture;
before(async () => {
  ({ readPng } = await import(pathToFileURL(path.join(PROJECT_DIR, 'config/demo/ocr_line/png.mjs')).href));
});

function chunk(type: string, content: Uint8Array): Buffer {
  const named = Buffer.concat([Buffer.from(type), content]);
  const [length, sum] = [Buffer.alloc(4), Buffer.alloc(4)];
  length.writeUInt32BE(content.length);
  sum.writeUInt32BE(crc32(named));
  return Buffer.concat([length, named, sum]);
}

function header(width: number, height: number, depth: number, kind: number, interlace = 0): Buffer {
  const content = Buffer.alloc(13);
  content.writeUInt32BE(width, 0);
  content.writeUInt32BE(height, 4);
  content.set([depth, kind, 0, 0, interlace], 8);
  return chunk('IHDR', content);
}

const SIGNATURE = Buffer.from('89504e470d0a1a0a', 'hex');
const END = chunk('IEND', new Uint8Array(0));
const png = (...chunks: Buffer[]) => Buffer.concat([SIGNATURE, ...chunks]);

/** Filters rows as the format has it, each with a filter of its own. */
function filtered(random: Random, rows: Uint8Array[], step: number): Buffer {
  return Buffer.concat(
    rows.map((row, y) => {
      const filter = random.int(0, 4);
      const out = row.map((value, n) => {
        const left = n >= step ? row[n - step]! : 0;
        const up = rows[y - 1]?.[n] ?? 0;
        const corner = n >= step ? (rows[y - 1]?.[n - step] ?? 0) : 0;
        const nearest = [left, up, corner].sort(
          (a, b) => Math.abs(left + up - corner - a) - Math.abs(left + up - corner - b),
        )[0]!;
        return value - [0, left, up, Math.floor((left + up) / 2), nearest][filter]!;
      });
      return Buffer.concat([Uint8Array.of(filter), out]);
    }),
  );
}

const SAMPLES: Readonly<Record<number, number>> = { 0: 1, 2: 3, 3: 1, 4: 2, 6: 4 };

test('pictures of every kind and depth are read as they were written', () => {
  const random = seedFromEnv();
  for (let round = 0; round < 300; round++) {
    const kind = random.pick([0, 2, 3, 4, 6]);
    const depth = random.pick(kind === 0 ? [1, 2, 4, 8, 16] : kind === 3 ? [1, 2, 4, 8] : [8, 16]);
    const samples = SAMPLES[kind]!;
    const [width, height] = [random.int(1, 20), random.int(1, 9)];
    const palette = random.bytes(3 * 2 ** Math.min(depth, 8));
    const most = 2 ** depth - 1;
    const rows: Uint8Array[] = [];
    const expected: number[] = [];
    for (let y = 0; y < height; y++) {
      const row = new Uint8Array(Math.ceil((width * samples * depth) / 8));
      for (let x = 0; x < width; x++) {
        const values = Array.from({ length: samples }, () => random.int(0, most));
        for (const [n, value] of values.entries()) {
          const bit = (x * samples + n) * depth;
          if (depth === 16) row.set([value >> 8, value & 255], bit / 8);
          else row[bit >> 3]! |= value << (8 - depth - (bit & 7));
        }
        const colour =
          kind === 3
            ? [...palette.subarray(3 * values[0]!, 3 * values[0]! + 3)].map((v) => v / 255)
            : values.map((v) => v / most);
        const shade = colour.length < 3 ? colour[0]! : 0.299 * colour[0]! + 0.587 * colour[1]! + 0.114 * colour[2]!;
        const alpha = kind === 4 || kind === 6 ? values[samples - 1]! / most : 1;
        expected.push(alpha * shade + (1 - alpha));
      }
      rows.push(row);
    }
    const data = deflateSync(filtered(random, rows, Math.max(1, (samples * depth) / 8)));
    const cut = random.int(0, data.length);
    const file = png(
      header(width, height, depth, kind),
      chunk('tEXt', Buffer.from('a\0b')),
      ...(kind === 3 ? [chunk('PLTE', palette)] : []),
      chunk('IDAT', data.subarray(0, cut)),
      chunk('IDAT', data.subarray(cut)),
      END,
    );
    const picture = readPng(new Uint8Array(file));
    assert.deepEqual([picture.width, picture.height], [width, height]);
    for (const [n, value] of expected.entries()) {
      assert.ok(Math.abs(picture.grey[n]! - value) < 1e-6, `kind ${kind}, depth ${depth}, element ${n}`);
    }
  }
});

test('every beginning of a picture, and every damaged byte that matters, is refused', () => {
  const line = readFileSync(path.join(PROJECT_DIR, 'config/demo-inputs/line.png'));
  for (let length = 0; length < line.length; length++) {
    assert.throws(() => readPng(line.subarray(0, length)), /ends before its end|is no PNG file/, `${length} bytes`);
  }
  for (let at = 0; at < line.length; at += 7) {
    const damaged = Buffer.from(line);
    damaged[at]! ^= 0x55;
    assert.throws(() => readPng(damaged), /is no PNG|damaged|ends before/, `byte ${at}`);
  }
});

test('pictures that mean harm are refused before they cost anything', () => {
  const data = (bytes: number) => chunk('IDAT', deflateSync(new Uint8Array(bytes)));
  for (const [file, message] of [
    [png(header(2 ** 31 - 1, 2 ** 31 - 1, 8, 0), data(1), END), /2147483647 × 2147483647 pixels; at most/],
    [png(header(8192, 8192, 16, 6), data(1), END), /8192 × 8192 pixels; at most/],
    [png(header(0, 5, 8, 0), data(0), END), /has no pixels/],
    [png(header(10, 10, 8, 0), data(100_000_000), END), /holds more pixels than it says/],
    [png(header(2000, 2000, 8, 0), data(10), END), /holds fewer pixels than it says/],
    [png(header(10, 10, 8, 0, 1), data(110), END), /is interlaced/],
    [png(header(10, 10, 3, 0), data(110), END), /malformed header/],
    [png(header(10, 10, 8, 5), data(110), END), /malformed header/],
    [png(header(1, 1, 8, 3), data(2), END), /has no palette/],
    [png(header(1, 1, 8, 3), chunk('PLTE', new Uint8Array(2)), data(2), END), /colour that its palette lacks/],
    [png(header(1, 1, 8, 0), header(1, 1, 8, 0), data(2), END), /more than one/],
    [png(data(2), END), /has no header/],
    [png(header(1, 1, 8, 0), chunk('IDAT', Buffer.from('nonsense')), END), /damaged pixels/],
    [
      png(header(1, 1, 8, 0), ...Array.from({ length: 10_000 }, () => chunk('tEXt', new Uint8Array(0)))),
      /more than 10000 chunks/,
    ],
    [Buffer.alloc(5 * 2 ** 20), /is larger than/],
  ] as const) {
    assert.throws(() => readPng(file), message);
  }
});
