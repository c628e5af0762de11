/** The runner behind `npm test`: a failure that it hides, or a file that it forgets, would make every other test worthless. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { temporaryDirectory } from './repository.ts';

const RUNNER = fileURLToPath(new URL('../run.js', import.meta.url));

/** Runs a copy of the runner over test files of the given contents, by path. */
async function runOver(t: TestContext, files: Readonly<Record<string, string>>, args: readonly string[] = []) {
  const dir = temporaryDirectory(t, 'runner');
  fs.copyFileSync(RUNNER, path.join(dir, 'run.js'));
  fs.writeFileSync(path.join(dir, 'package.json'), '{"type":"module"}');
  for (const [name, content] of Object.entries(files)) {
    const file = path.join(dir, name);
    fs.mkdirSync(path.dirname(file), { recursive: true });
    fs.writeFileSync(file, `import { test } from 'node:test';\nimport fs from 'node:fs';\n${content}`);
  }
  const { NODE_TEST_CONTEXT: _, ...env } = process.env;
  const child = spawn(process.execPath, [path.join(dir, 'run.js'), ...args], { cwd: dir, env });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk: Buffer) => {
      output += chunk;
    });
  }
  const code = await new Promise<number | null>((resolve) => child.once('close', resolve));
  const counts = Object.fromEntries(
    [...output.matchAll(/^ℹ (\w+) (\d+)/gm)].map(([, name, value]) => [name, Number(value)]),
  );
  return { code, output, counts };
}

const passing = (name: string) => `test('${name}', () => {});`;

test('all kinds are run and counted in one summary', async (t) => {
  const result = await runOver(t, {
    'unit/deep/a.test.js': `${passing('one')} test('skipped', { skip: true }, () => {}); test('later', { todo: true }, () => {});`,
    'unit/b.test.js': `test('group', async (t) => { await t.test('inner', () => {}); t.diagnostic('pass 100'); });`,
    'stress/c.test.js': passing('three'),
    'unit/helper.js': `throw new Error('not a test file');`,
  });
  const { tests, pass, fail, skipped, todo } = result.counts;
  assert.deepEqual({ tests, pass, fail, skipped, todo }, { tests: 6, pass: 4, fail: 0, skipped: 1, todo: 1 });
  assert.equal(result.output.match(/ℹ tests /g)?.length, 1);
  for (const name of ['one', 'inner', 'three']) assert.match(result.output, new RegExp(`✔ ${name}`));
  assert.equal(result.code, 0);
});

test('a failure in any kind fails the whole, and is shown at the end', async (t) => {
  const failing = `test('breaks', () => { throw new Error('as it should'); });`;
  for (const kind of ['unit', 'integration']) {
    const result = await runOver(t, {
      'unit/a.test.js': passing('one'),
      'stress/b.test.js': passing('two'),
      [`${kind}/x.test.js`]: failing,
    });
    assert.equal(result.code, 1, kind);
    assert.deepEqual([result.counts.tests, result.counts.pass, result.counts.fail], [3, 2, 1]);
    assert.match(result.output.slice(result.output.indexOf('failing tests')), /breaks.*as it should/s);
  }
});

test('a file that cannot be loaded, exits early or is killed fails the whole', async (t) => {
  for (const content of ["import './missing.js';", 'process.exit(3);', "process.kill(process.pid, 'SIGKILL');"]) {
    const result = await runOver(t, { 'unit/a.test.js': passing('one'), 'fault/b.test.js': content });
    assert.equal(result.code, 1, content);
    assert.equal(result.counts.fail, 1, content);
  }
});

test('kinds that use the whole machine run one file at a time', async (t) => {
  // Each file holds a lock for its whole life, so two at once would show.
  const exclusive = `fs.mkdirSync('lock'); test('alone', () => {}); process.on('exit', () => fs.rmdirSync('lock'));`;
  const files = Object.fromEntries(
    ['stress/a', 'stress/b', 'fault/c', 'bench/d'].map((name) => [`${name}.test.js`, exclusive]),
  );
  const result = await runOver(t, files);
  assert.deepEqual([result.code, result.counts.pass], [0, 4], result.output);
});

test('kinds and parts of paths select files', async (t) => {
  const files = {
    'unit/queue/a.test.js': passing('one'),
    'unit/client/b.test.js': passing('two'),
    'fuzz/queue/c.test.js': passing('three'),
  };
  const names = async (args: readonly string[]) => {
    const { output } = await runOver(t, files, args);
    return [...output.matchAll(/✔ (\w+)/g)].map(([, name]) => name).sort();
  };
  assert.deepEqual(await names(['queue']), ['one', 'three']);
  assert.deepEqual(await names(['--kind', 'unit']), ['one', 'two']);
  assert.deepEqual(await names(['--kind', 'unit', 'queue']), ['one']);
  assert.deepEqual(await names(['--skip-kind', 'unit']), ['three']);
  assert.deepEqual(await names(['test/unit/client/b.test.ts', 'fuzz/']), ['three', 'two']);
});

test('nothing to run, an unknown kind or an unknown option is an error', async (t) => {
  const files = { 'unit/a.test.js': passing('one') };
  for (const args of [
    ['no-such-file'],
    ['--kind', 'nonsense'],
    ['--kind', 'constructor'],
    ['--skip-kind', 'x'],
    ['--nonsense'],
  ]) {
    const { code, counts } = await runOver(t, files, args);
    assert.deepEqual([code, counts.tests], [2, undefined], args.join(' '));
  }
});

test('--help tells the options and the kinds, and runs nothing', async (t) => {
  const { code, output, counts } = await runOver(t, { 'unit/a.test.js': passing('one') }, ['--help']);
  assert.deepEqual([code, counts.tests], [0, undefined]);
  assert.match(output, /^usage: npm test .*--kind KIND.*\n {2}integration +a whole server\n/s);
});
