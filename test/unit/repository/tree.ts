/** A temporary directory that is filled from a table of paths and removed when the test ends. */
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { TestContext } from 'node:test';

/** Begins like an ONNX file: field 1 (ir_version) as a varint. */
export const MODEL_BYTES = Buffer.from([0x08, 0x0a, 0x12, 0x04, 0x74, 0x65, 0x73, 0x74]);

/** Content by path: text or bytes of a file, `{ link }` for a link to there; a path that ends in '/' is a directory. */
export type Tree = Readonly<Record<string, string | Uint8Array | { readonly link: string }>>;

/** @returns absolute path of the new directory. */
export function makeTree(t: TestContext, tree: Tree): string {
  const root = mkdtempSync(join(tmpdir(), 'batchport-test-'));
  t.after(() => rmSync(root, { recursive: true, force: true }));
  for (const [name, content] of Object.entries(tree)) {
    const path = join(root, name);
    if (name.endsWith('/')) {
      mkdirSync(path, { recursive: true });
      continue;
    }
    mkdirSync(dirname(path), { recursive: true });
    if (typeof content === 'object' && 'link' in content) {
      symlinkSync(content.link, path);
    } else {
      writeFileSync(path, content);
    }
  }
  return root;
}

/** Runs `body` as a user for whom file permissions count; false when this process is root and cannot be anybody else. */
export function withoutPrivileges(body: () => void): boolean {
  const { geteuid, seteuid } = process;
  if (geteuid === undefined || seteuid === undefined || geteuid() !== 0) {
    body();
    return true;
  }
  try {
    seteuid(65_534);
  } catch {
    return false;
  }
  try {
    body();
  } finally {
    seteuid(0);
  }
  return true;
}
