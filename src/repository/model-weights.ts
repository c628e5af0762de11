/**
 * Where the weights of a model lie and how large they are, read off its files without loading it; and a fingerprint by which the same model is known again.
 *
 * An ONNX file is a protobuf message; tensors lie in it or, as "external data", in files beside it that it names. The walk follows the messages that may hold
 * tensors and skips everything else by its length, so a file of gigabytes costs a few reads. What cannot be understood is not counted: whether the file is a model is
 * for ONNX Runtime to say. Bounds: STEPS_MAX fields, DEPTH_MAX messages in each other, FILES_MAX files, SAMPLES blocks of a file for the fingerprint.
 *
 * Source: onnx.proto (field numbers), the protobuf encoding.
 */
import { createHash } from 'node:crypto';
import { type FileHandle, open } from 'node:fs/promises';
import path from 'node:path';

const STEPS_MAX = 5_000_000;
const DEPTH_MAX = 32;
const FILES_MAX = 4096;
const TEXT_BYTES_MAX = 4096;
const BUFFER_BYTES = 16 * 1024;
const SAMPLES = 64;
const SAMPLE_BYTES = 64 * 1024;

/** Fields of each message that lead to tensors, by number. */
const LEADS = {
  model: { 7: 'graph' },
  graph: { 1: 'node', 5: 'tensor' },
  node: { 5: 'attribute' },
  attribute: { 5: 'tensor', 6: 'graph', 10: 'tensor', 11: 'graph' },
  tensor: { 13: 'entry' },
  entry: {},
} as const;
type Message = keyof typeof LEADS;

/** Wire types of protobuf. */
const VARINT = 0;
const FIXED64 = 1;
const LONG = 2;
const FIXED32 = 5;
const VARINT_BYTES_MAX = 10;
/** Tag and length of a field. */
const HEAD_BYTES_MAX = 2 * VARINT_BYTES_MAX;

const ENTRY_KEY = 1;
const ENTRY_VALUE = 2;

export interface ModelWeights {
  /** Of the model file and of the parts of other files that it names: about what its weights take in memory, at the least. */
  readonly bytes: number;
  /** Absolute paths of the model file and of the files beside it. */
  readonly files: readonly string[];
}

/** A field of a message: its content lies in [start, end). */
interface Field {
  readonly number: number;
  readonly isLong: boolean;
  readonly start: number;
  readonly end: number;
}

interface External {
  location: string;
  offset: number;
  length: number | undefined;
}

/** Finds a model's weights. @throws Error when the model file itself cannot be read */
export async function findWeights(modelPath: string): Promise<ModelWeights> {
  const file = await open(modelPath, 'r');
  try {
    const { size } = await file.stat();
    const external: External[] = [];
    await new Walk(file, external).message('model', 0, size, 0);
    const directory = path.dirname(modelPath);
    const sizes = new Map<string, number>();
    let bytes = size;
    for (const { location, offset, length } of external) {
      const beside = path.resolve(directory, location);
      // ONNX Runtime refuses what lies elsewhere.
      if (!beside.startsWith(`${directory}${path.sep}`)) continue;
      if (!sizes.has(beside) && sizes.size < FILES_MAX) sizes.set(beside, await fileBytes(beside));
      // A file that is shorter than it should be is for the load to tell.
      const rest = Math.max(0, (sizes.get(beside) ?? 0) - offset);
      bytes += Math.min(length ?? rest, rest);
    }
    return { bytes, files: [modelPath, ...sizes.keys()] };
  } finally {
    await file.close();
  }
}

/**
 * A text that is the same for the same files, wherever they lie: a hash over their sizes and their contents. Of files beyond a few megabytes, blocks at equal
 * distances stand for the whole: enough to tell models apart, and not a proof of integrity.
 */
export async function fingerprint(files: readonly string[]): Promise<string> {
  const hash = createHash('sha256');
  for (const name of files) {
    const file = await open(name, 'r');
    try {
      const { size } = await file.stat();
      hash.update(`${size}\n`);
      const whole = size <= SAMPLES * SAMPLE_BYTES;
      const step = whole ? SAMPLE_BYTES : (size - SAMPLE_BYTES) / (SAMPLES - 1);
      const count = whole ? Math.ceil(size / SAMPLE_BYTES) : SAMPLES;
      const block = Buffer.alloc(SAMPLE_BYTES);
      for (let n = 0; n < count; n++) {
        const { bytesRead } = await file.read(block, 0, SAMPLE_BYTES, Math.floor(n * step));
        hash.update(block.subarray(0, bytesRead));
      }
    } finally {
      await file.close();
    }
  }
  return hash.digest('hex');
}

async function fileBytes(name: string): Promise<number> {
  try {
    const file = await open(name, 'r');
    try {
      return (await file.stat()).size;
    } finally {
      await file.close();
    }
  } catch {
    return 0; // missing: the load will say so
  }
}

/** Reads protobuf messages through a window onto the file. */
class Walk {
  readonly #file: FileHandle;
  readonly #external: External[];
  readonly #buffer = Buffer.alloc(BUFFER_BYTES);
  /** The window: where it starts in the file, and how long it is. */
  #start = 0;
  #length = 0;
  /** Where we are, in the file. */
  #at = 0;
  #steps = 0;

  constructor(file: FileHandle, external: External[]) {
    this.#file = file;
    this.#external = external;
  }

  /** Walks the message in [from, to). Ends early at anything that is no protobuf. */
  async message(kind: Message, from: number, to: number, depth: number): Promise<void> {
    const leads: Readonly<Record<number, Message>> = LEADS[kind];
    let tensor: External | undefined;
    for (let at = from; at < to && depth <= DEPTH_MAX; ) {
      const field = await this.#field(at);
      if (field === undefined || field.end > to) return;
      const next = field.isLong ? leads[field.number] : undefined;
      if (next === 'entry') {
        tensor ??= { location: '', offset: 0, length: undefined };
        await this.#entry(tensor, field);
      } else if (next !== undefined) await this.message(next, field.start, field.end, depth + 1);
      at = field.end;
    }
    if (tensor !== undefined && tensor.location !== '') this.#external.push(tensor);
  }

  /** A key and a value about where a tensor lies. */
  async #entry(tensor: External, { start, end }: Field): Promise<void> {
    let key = '';
    let value = '';
    for (let at = start; at < end; ) {
      const field = await this.#field(at);
      if (field === undefined || field.end > end || field.end - field.start > TEXT_BYTES_MAX) return;
      if (field.number === ENTRY_KEY) key = await this.#text(field);
      if (field.number === ENTRY_VALUE) value = await this.#text(field);
      at = field.end;
    }
    if (key === 'location') tensor.location = value;
    else if (key === 'offset') tensor.offset = bytesOf(value) ?? 0;
    else if (key === 'length') tensor.length = bytesOf(value);
  }

  async #field(at: number): Promise<Field | undefined> {
    this.#at = at;
    if (++this.#steps > STEPS_MAX) return undefined;
    if (!this.#sees(HEAD_BYTES_MAX)) await this.#look();
    const tag = this.#varint();
    if (tag === undefined) return undefined;
    const number = Math.floor(tag / 8);
    switch (tag % 8) {
      case VARINT:
        return this.#varint() === undefined ? undefined : { number, isLong: false, start: this.#at, end: this.#at };
      case FIXED64:
        return { number, isLong: false, start: this.#at, end: this.#at + 8 };
      case LONG: {
        const length = this.#varint();
        return length === undefined ? undefined : { number, isLong: true, start: this.#at, end: this.#at + length };
      }
      case FIXED32:
        return { number, isLong: false, start: this.#at, end: this.#at + 4 };
      default:
        return undefined;
    }
  }

  /** From the window alone. */
  #varint(): number | undefined {
    let value = 0;
    for (let n = 0; n < VARINT_BYTES_MAX && this.#sees(1); n++) {
      const byte = this.#buffer[this.#at - this.#start]!;
      this.#at++;
      value += (byte & 0x7f) * 2 ** (7 * n);
      if (byte < 0x80) return value;
    }
    return undefined;
  }

  async #text({ start, end }: Field): Promise<string> {
    this.#at = start;
    if (!this.#sees(end - start)) await this.#look();
    const from = start - this.#start;
    return this.#buffer.toString('utf8', from, Math.min(from + end - start, this.#length));
  }

  #sees(bytes: number): boolean {
    return this.#at >= this.#start && this.#at + bytes <= this.#start + this.#length;
  }

  /** Moves the window to where we are. */
  async #look(): Promise<void> {
    this.#start = this.#at;
    ({ bytesRead: this.#length } = await this.#file.read(this.#buffer, 0, BUFFER_BYTES, this.#at));
  }
}

function bytesOf(text: string): number | undefined {
  return /^\d{1,15}$/.test(text) ? Number(text) : undefined;
}
