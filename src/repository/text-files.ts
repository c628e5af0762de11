/**
 * Text files of a model that its configuration names, labels for instance: read when the model is, and then the same for every process, whatever becomes of the files.
 *
 *     directory ─▶ readTextFiles (supervisor) ─▶ SharedTexts: a memory file ─▶ receiveTexts (ingress)
 *
 * Owner of the memory file: the supervisor's record of the version. Bounds: TEXT_FILES_MAX files, each of TEXT_BYTES_MAX.
 */
import { createHash } from 'node:crypto';
import { closeSync, readSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { type ModelConfig, textFileNames } from '../config/model-config.ts';
import { lineCount, readLines, TEXT_BYTES_MAX, type TextLines } from '../postprocess/text-lines.ts';
import type { TextsReference } from '../protocol/control.ts';
import { memfdCreate, openProcessFd } from '../system/memory.ts';
import { readHead } from './files.ts';

const MODULE_BYTES_MAX = 16 * 2 ** 20;

export interface TextFiles {
  readonly files: readonly { readonly name: string; readonly bytes: Uint8Array; readonly lines: number }[];
  /** Equal exactly when the files are, and the module of the transform is. */
  readonly digest: string;
}

/** Reads the files that a configuration names, in the directory of the model; or what is wrong with one. */
export function readTextFiles(directory: string, config: ModelConfig): TextFiles | { readonly problem: string } {
  const files: TextFiles['files'][number][] = [];
  const hash = createHash('sha256');
  for (const name of textFileNames(config)) {
    // One byte more than is allowed, so that it is seen to be too much.
    const head = readHead(join(directory, name), TEXT_BYTES_MAX + 1);
    const lines = 'problem' in head ? head : readLines(head.bytes);
    if ('problem' in head) return { problem: `${name}, asked for by its configuration, ${head.problem}` };
    if ('problem' in lines) return { problem: `${name} ${lines.problem}` };
    files.push({ name, bytes: head.bytes, lines: lineCount(lines) });
    hash.update(`${name} ${head.bytes.length} `).update(head.bytes);
  }
  const { transform } = config;
  if (transform !== undefined) {
    const head = readHead(join(directory, transform.module), MODULE_BYTES_MAX + 1);
    if ('problem' in head) return { problem: `${transform.module}, its transform, ${head.problem}` };
    if (head.bytes.length > MODULE_BYTES_MAX) {
      return { problem: `${transform.module}, its transform, is larger than ${MODULE_BYTES_MAX} bytes` };
    }
    hash.update(`${transform.module} ${head.bytes.length} `).update(head.bytes);
  }
  return { files, digest: hash.digest('hex') };
}

/** The files in memory, for other processes. */
export class SharedTexts {
  readonly reference: TextsReference;

  /** @throws SystemError when there is no memory for them */
  constructor(label: string, { files }: TextFiles) {
    const fd = memfdCreate(`batchport-texts-${label}`.slice(0, 200));
    this.reference = {
      pid: process.pid,
      fd,
      files: files.map(({ name, bytes }) => ({ name, bytes: bytes.length })),
    };
    try {
      for (const { bytes } of files) {
        for (let at = 0; at < bytes.length; ) at += writeSync(fd, bytes, at);
      }
    } catch (error) {
      closeSync(fd);
      throw error;
    }
  }

  close(): void {
    closeSync(this.reference.fd);
  }
}

/** The files that another process has put there, by name. @throws SystemError when that process is gone */
export function receiveTexts({ pid, fd, files }: TextsReference): Map<string, TextLines> {
  const own = openProcessFd(pid, fd);
  try {
    const texts = new Map<string, TextLines>();
    let start = 0;
    for (const { name, bytes } of files) {
      const content = new Uint8Array(bytes);
      for (let at = 0; at < bytes; ) {
        const count = readSync(own, content, at, bytes - at, start + at);
        if (count === 0) throw new Error('a memory file is shorter than was said: this is a bug');
        at += count;
      }
      const lines = readLines(content);
      if ('problem' in lines) throw new Error(`${name} ${lines.problem}, which was checked before: this is a bug`);
      texts.set(name, lines);
      start += bytes;
    }
    return texts;
  } finally {
    closeSync(own);
  }
}
