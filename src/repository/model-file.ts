/**
 * Whether a file looks like a model, judged by its size and first bytes, so that the usual mix-ups get a plain reason.
 *
 * Whether it is a model is for ONNX Runtime to say; everything here is certain not to be one. An ONNX file is a protobuf
 * message, and none of the texts looked for can begin one: read as tags, their bytes have a field number of 0, a wire type that
 * does not exist (6, 7) or is for groups (3, 4), which ONNX does not use; blanks before them are fields of the wrong type.
 * Bound: HEAD_BYTES are read.
 */
import { readHead } from './files.ts';

const HEAD_BYTES = 256;

const MAGICS: readonly (readonly [string, string])[] = [
  [
    'version https://git-lfs.github.com/spec/',
    'is a Git-LFS pointer and not the model itself; run "git lfs pull" where it was cloned',
  ],
  ['PK\x03\x04', 'is a ZIP archive (as PyTorch and Keras write); export the model to ONNX, or unpack it'],
  ['\x1f\x8b', 'is compressed with gzip; unpack it'],
  ['GGUF', 'is a GGUF model; only ONNX models can be served'],
];

/** Why the file cannot be a model, to follow its name; undefined when it may be one. `head`: its first bytes. */
export function modelHeadProblem(head: Uint8Array, sizeBytes: number): string | undefined {
  if (sizeBytes === 0) {
    return 'is empty';
  }
  const text = Buffer.from(head.buffer, head.byteOffset, head.byteLength).toString('latin1');
  const magic = MAGICS.find(([start]) => text.startsWith(start));
  if (magic !== undefined) {
    return magic[1];
  }
  const start = text.replace(/^(\xef\xbb\xbf)?\s*/, '');
  if (/^<[!?a-z]/i.test(start)) {
    return 'is an HTML or XML page and not a model; a download probably brought an error page';
  }
  return /^[{[]/.test(start) ? 'is JSON text and not a model' : undefined;
}

export interface ModelFile {
  /** 0 where the file cannot be read. */
  readonly sizeBytes: number;
  /** Why it cannot be loaded, to follow its name. */
  readonly problem?: string;
}

/** Opens the file (through links), which also shows that it can be read. */
export function checkModelFile(path: string): ModelFile {
  const head = readHead(path, HEAD_BYTES);
  if ('problem' in head) {
    return { sizeBytes: 0, problem: head.problem };
  }
  const problem = modelHeadProblem(head.bytes, head.sizeBytes);
  return problem === undefined ? { sizeBytes: head.sizeBytes } : { sizeBytes: head.sizeBytes, problem };
}
