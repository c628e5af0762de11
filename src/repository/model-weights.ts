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
import { constants } from 'node:fs';
import { type FileHandle, open, stat } from 'node:fs/promises';
import path from 'node:path';

/** Without O_NONBLOCK, opening a named pipe waits until somebody writes to it. */
const READ = constants.O_RDONLY | constants.O_NONBLOCK;
const STEPS_MAX = 2_000_000;
const DEPTH_MAX = 32;
const FILES_MAX = 4096;
const ENTRY_BYTES_MAX = 8192;
const WINDOW_BYTES = 16 * 1024;
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

interface External {
  location: string;
  offset: number;
  length: number | undefined;
}

/** Finds a model's weights. @throws Error when the model file itself cannot be read */
export async function findWeights(modelPath: string): Promise<ModelWeights> {
  const file = await open(modelPath, READ);
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
    const file = await open(name, READ);
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
    const found = await stat(name);
    return found.isFile() ? found.size : 0;
  } catch {
    return 0; // missing: the load will say so
  }
}

/** Reads protobuf messages through a window onto the file. */
class Walk {
  readonly #file: FileHandle;
  readonly #external: External[];
  readonly #buffer = Buffer.alloc(WINDOW_BYTES);
  #windowAt = 0;
  #windowBytes = 0;
  /** Where we are, in the file. */
  #at = 0;
  #steps = 0;
  /** The field last parsed: its number, whether it has a length, and where its content lies. */
  #number = 0;
  #isLong = false;
  #start = 0;
  #end = 0;

  constructor(file: FileHandle, external: External[]) {
    this.#file = file;
    this.#external = external;
  }

  /** Walks the message in [from, to). Ends early at anything that is no protobuf. */
  async message(kind: Message, from: number, to: number, depth: number): Promise<void> {
    const leads: Readonly<Record<number, Message>> = LEADS[kind];
    let tensor: External | undefined;
    for (let at = from; at < to && depth <= DEPTH_MAX; at = this.#end) {
      // Only where it is needed: a wait for each field would take longer than all the rest.
      if (!this.#sees(at, HEAD_BYTES_MAX)) await this.#look(at);
      if (!this.#parse(at) || this.#end > to) return;
      const next = this.#isLong ? leads[this.#number] : undefined;
      if (next === undefined) continue;
      const [start, end] = [this.#start, this.#end];
      if (next === 'entry') {
        tensor ??= { location: '', offset: 0, length: undefined };
        await this.#entry(tensor, start, end);
      } else await this.message(next, start, end, depth + 1);
      this.#end = end;
    }
    if (tensor !== undefined && tensor.location !== '') this.#external.push(tensor);
  }

  /** A key and a value about where a tensor lies. */
  async #entry(tensor: External, from: number, to: number): Promise<void> {
    if (to - from > ENTRY_BYTES_MAX) return;
    if (!this.#sees(from, to - from)) await this.#look(from);
    let key = '';
    let value = '';
    for (let at = from; at < to; at = this.#end) {
      if (!this.#parse(at) || this.#end > to) return;
      if (this.#number === ENTRY_KEY) key = this.#text();
      if (this.#number === ENTRY_VALUE) value = this.#text();
    }
    if (key === 'location') tensor.location = value;
    else if (key === 'offset') tensor.offset = bytesOf(value) ?? 0;
    else if (key === 'length') tensor.length = bytesOf(value);
  }

  /** Reads the head of a field that the window shows, and finds where its content lies. Returns false for what is none. */
  #parse(at: number): boolean {
    this.#at = at;
    const tag = ++this.#steps > STEPS_MAX ? undefined : this.#varint();
    if (tag === undefined) return false;
    this.#number = Math.floor(tag / 8);
    this.#isLong = tag % 8 === LONG;
    let length: number | undefined;
    switch (tag % 8) {
      case VARINT:
        length = this.#varint() === undefined ? undefined : 0;
        break;
      case FIXED64:
        length = 8;
        break;
      case LONG:
        length = this.#varint();
        break;
      case FIXED32:
        length = 4;
        break;
    }
    this.#start = this.#at;
    this.#end = this.#at + (length ?? 0);
    // There is no field 0: a file of zeros is no message of very many fields.
    return length !== undefined && this.#number > 0;
  }

  #varint(): number | undefined {
    let value = 0;
    for (let n = 0; n < VARINT_BYTES_MAX && this.#sees(this.#at, 1); n++) {
      const byte = this.#buffer[this.#at - this.#windowAt]!;
      this.#at++;
      value += (byte & 0x7f) * 2 ** (7 * n);
      if (byte < 0x80) return value;
    }
    return undefined;
  }

  /** The content of the field as text. */
  #text(): string {
    return this.#buffer.toString('utf8', this.#start - this.#windowAt, this.#end - this.#windowAt);
  }

  #sees(at: number, bytes: number): boolean {
    return at >= this.#windowAt && at + bytes <= this.#windowAt + this.#windowBytes;
  }

  /** Moves the window. */
  async #look(at: number): Promise<void> {
    this.#windowAt = at;
    ({ bytesRead: this.#windowBytes } = await this.#file.read(this.#buffer, 0, WINDOW_BYTES, at));
  }
}

function bytesOf(text: string): number | undefined {
  return /^\d{1,15}$/.test(text) ? Number(text) : undefined;
}
