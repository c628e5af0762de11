/**
 * The table of model fixtures, and their files on disk.
 *
 * Every build of a fixture gives the same bytes. Built models are kept for the life of the process, which only `mlp_big` (33 MB) and `conv` (18 MB)
 * make felt.
 */
import fs from 'node:fs';
import path from 'node:path';
import type { Fixture, ModelFiles } from './fixture.ts';
import { ARITHMETIC } from './fixtures-arithmetic.ts';
import { BATCHES } from './fixtures-batches.ts';
import { COMPUTE } from './fixtures-compute.ts';
import { ELEMENTWISE } from './fixtures-elementwise.ts';
import { SHAPES } from './fixtures-shapes.ts';

const fixtures = new Map<string, Fixture>(
  [...ELEMENTWISE, ...ARITHMETIC, ...SHAPES, ...COMPUTE, ...BATCHES].map((entry) => [entry.name, entry]),
);
const built = new Map<string, ModelFiles>();

/** Names of all fixtures. */
export const FIXTURE_NAMES: readonly string[] = [...fixtures.keys()];

/** A fixture by name. @throws Error for an unknown name. */
export function fixture(name: string): Fixture {
  const found = fixtures.get(name);
  if (found === undefined)
    throw new Error(`no fixture named ${JSON.stringify(name)}; there are ${FIXTURE_NAMES.join(', ')}`);
  return found;
}

/** The files of a fixture. */
export function modelFiles(name: string): ModelFiles {
  let files = built.get(name);
  if (files === undefined) {
    files = fixture(name).build();
    built.set(name, files);
  }
  return files;
}

/** Writes a fixture as `<dir>/<fileName>`, its side files beside it, and returns the model's path. */
export function writeModel(dir: string, name: string, fileName = `${name}.onnx`): string {
  const { model, sideFiles } = modelFiles(name);
  fs.mkdirSync(dir, { recursive: true });
  for (const [sideName, bytes] of sideFiles ?? []) fs.writeFileSync(path.join(dir, sideName), bytes);
  const file = path.join(dir, fileName);
  fs.writeFileSync(file, model);
  return file;
}

/** Writes the named fixtures, or all, as `<dir>/<name>.onnx` and returns their paths by name. */
export function buildModels(dir: string, names: readonly string[] = FIXTURE_NAMES): Map<string, string> {
  return new Map(names.map((name) => [name, writeModel(dir, name)]));
}
