/** `inspect --types`: what it prints is what the compiler takes, and by it the compiler tells right calls of the client from wrong ones. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { writeModel } from '../../support/models.ts';
import { temporaryDirectory } from '../../support/repository.ts';
import { PROJECT_DIR } from '../../support/server.ts';
import { capture } from './capture.ts';

const TSC = path.join(PROJECT_DIR, 'node_modules/typescript/bin/tsc');
const CLIENT = fileURLToPath(new URL('../../../src/client/client.js', import.meta.url));

const HEAD = `
import type { Client } from '${CLIENT}';
import type { Multitype } from './multitype.ts';
import type { OddNames } from './odd_names.ts';
declare const client: Client;
`;

/** Errors of the compiler by line of the text behind the head. */
function errorsOf(dir: string, text: string): string[] {
  const file = path.join(dir, 'use.ts');
  fs.writeFileSync(file, HEAD + text);
  const compilerOptions = {
    strict: true,
    noEmit: true,
    target: 'es2023',
    module: 'nodenext',
    allowImportingTsExtensions: true,
    skipLibCheck: true,
    typeRoots: [path.join(PROJECT_DIR, 'node_modules/@types')],
    types: ['node'],
  };
  fs.writeFileSync(path.join(dir, 'tsconfig.json'), JSON.stringify({ compilerOptions, files: ['use.ts'] }));
  const { stdout } = spawnSync(process.execPath, [TSC, '-p', dir, '--pretty', 'false'], { encoding: 'utf8', cwd: dir });
  const lines = stdout.split('\n').filter((line) => line.includes(': error '));
  return lines.map((line) => {
    const [, number, rest] = /^use\.ts\((\d+),\d+\)(.*)$/.exec(line) ?? [];
    return number === undefined ? line : `${Number(number) - HEAD.split('\n').length + 1}${rest}`;
  });
}

test('the compiler takes right calls of the client and refuses wrong names, datatypes and arrays', async (t) => {
  const dir = temporaryDirectory(t, 'types');
  fs.writeFileSync(path.join(dir, 'package.json'), '{"type":"module"}');
  for (const name of ['multitype', 'odd_names']) {
    writeModel(dir, name);
    const { exitCode, out } = await capture(['inspect', `${name}.onnx`, '--types'], { cwd: dir });
    assert.equal(exitCode, 0);
    fs.writeFileSync(path.join(dir, `${name}.ts`), out);
  }
  const types = fs.readFileSync(path.join(dir, 'multitype.ts'), 'utf8');
  assert.match(types, /^export interface Multitype \{$/m);
  assert.match(types, /^ {4}"a": 'UINT8';$/m);
  const right = `
    const a = { name: 'a', datatype: 'UINT8', shape: [1, 2], data: new Uint8Array(2) } as const;
    const b = { name: 'b', datatype: 'FP64', shape: [1, 3], data: [1, 2, 3] } as const;
    const result = await client.infer<Multitype>('multitype', { inputs: [a, b], timeoutMs: 5 });
    const untyped = await client.infer('multitype', { inputs: [a, b] });
    const any: readonly number[] = untyped.outputs[0]!.shape;
    await client.infer<OddNames>('odd_names', { inputs: [{ name: '__proto__', datatype: 'FP32', shape: [1, 2], data: [1, 2] }], outputs: ['softmax_0.tmp_0'] });
    export { any, result };
  `;
  assert.deepEqual(errorsOf(dir, right), []);
  const wrong = [
    `export const r = client.infer<Multitype>('m', { inputs: [{ name: 'c', datatype: 'UINT8', shape: [1], data: [1] }] });`,
    `export const r = client.infer<Multitype>('m', { inputs: [{ name: 'a', datatype: 'FP64', shape: [1], data: [1] }] });`,
    `export const r = client.infer<Multitype>('m', { inputs: [{ name: 'a', datatype: 'UINT8', shape: [1], data: new Float32Array(1) }] });`,
    `export const r = client.infer<Multitype>('m', { inputs: [], outputs: ['nothing'] });`,
    `export const r = client.infer<Multitype>('m', { inputs: [] }).then((result) => result.output('nothing'));`,
    `export const r: Promise<string> = client.infer<OddNames>('m', { inputs: [] }).then((result) => result.output('valueOf').data);`,
  ];
  const errors = errorsOf(dir, wrong.map((line, n) => line.replace('const r', `const r${n}`)).join('\n'));
  const lines = new Set(errors.map((error) => Number(error.split(':')[0])));
  assert.deepEqual(
    [...lines].sort(),
    wrong.map((_, n) => n + 1),
    errors.join('\n'),
  );
});

test('--types and --json exclude each other', async (t) => {
  const dir = temporaryDirectory(t, 'types');
  writeModel(dir, 'simple');
  const { exitCode, err } = await capture(['inspect', 'simple.onnx', '--types', '--json'], { cwd: dir });
  assert.equal(exitCode, 2);
  assert.match(err, /exclude each other/);
});
