/** Repositories for tests: temporary directories filled from a table of paths, removed when the test ends. */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { TestContext } from 'node:test';
import type { RepositoryModel } from '../../../src/repository/model-directory.ts';
import { scanRepository } from '../../../src/repository/repository.ts';

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

/** A model that nothing is wrong with. */
export const GOOD: Tree = { 'good/1/model.onnx': MODEL_BYTES };

/** The model `name` of a repository with this content, beside a good one which must stay servable. */
export function modelOf(t: TestContext, tree: Tree, name = 'm'): RepositoryModel {
  const { models } = scanRepository(makeTree(t, { ...GOOD, ...tree }));
  const good = models.find((model) => model.name === 'good');
  assert.ok(good !== undefined && good.problem === undefined);
  assert.equal(good.versions.length, 1);
  const model = models.find((one) => one.name === name);
  assert.ok(model !== undefined, `${name} is not among ${models.map((one) => one.name)}`);
  return model;
}

export function versionsOf(model: RepositoryModel): string[] {
  return model.versions.map((version) => version.version);
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
