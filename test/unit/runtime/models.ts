/**
 * Model files of these tests, in a temporary folder that goes with the test process.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { Runner } from '../../../src/runtime/runner.ts';
import { type LoadOptions, Session } from '../../../src/runtime/session.ts';
import { writeModel } from '../../support/models.ts';

export const CPU: LoadOptions = { provider: 'cpu', deviceId: 0, intraOpThreads: 1 };

let folder: string | undefined;

export function modelFolder(): string {
  if (folder === undefined) {
    folder = mkdtempSync(path.join(tmpdir(), 'batchport-runtime-'));
    const created = folder;
    process.on('exit', () => rmSync(created, { recursive: true, force: true }));
  }
  return folder;
}

/** Path of a fixture's model file. */
export function modelPath(name: string): string {
  return writeModel(modelFolder(), name);
}

/** Path of a file with these contents. */
export function filePath(name: string, contents: string | Uint8Array): string {
  const file = path.join(modelFolder(), name);
  writeFileSync(file, contents);
  return file;
}

/** Session and runner of a fixture, freed when the test ends. */
export function open(t: TestContext, name: string, options: LoadOptions = CPU): { session: Session; runner: Runner } {
  const session = Session.load(modelPath(name), options);
  const runner = new Runner(session.handle);
  t.after(() => {
    runner.dispose();
    session.release();
  });
  return { session, runner };
}
