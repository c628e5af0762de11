/** Ends of child processes in words. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CHILD_EXIT } from '../../../src/protocol/child-exit.ts';
import { describeEnding, type Ending } from '../../../src/supervisor/exit-words.ts';

function ending(part: Partial<Ending>) {
  return describeEnding({ code: null, signal: null, killedFor: undefined, outOfMemory: false, ...part });
}

test('exit codes of the table come with their meaning', () => {
  assert.equal(ending({ code: 70 }).how, 'exit code 70 (a bug in an instance)');
  assert.equal(ending({ code: 71 }).how, 'exit code 71 (its supervisor was gone)');
  for (const { code, meaning } of Object.values(CHILD_EXIT)) {
    assert.equal(ending({ code }).how, `exit code ${code} (${meaning})`);
  }
});

test('codes of the table differ', () => {
  const codes = Object.values(CHILD_EXIT).map(({ code }) => code);
  assert.equal(new Set(codes).size, codes.length);
});

test('other exit codes are told as they are, 0 too', () => {
  assert.equal(ending({ code: 3 }).how, 'exit code 3');
  assert.equal(ending({ code: 0 }).how, 'exit code 0');
  assert.equal(ending({ code: 3 }).blame, 'worker');
});

test('crashes are named and are the own doing of the process', () => {
  for (const [signal, words] of [
    ['SIGSEGV', /segmentation fault/],
    ['SIGABRT', /aborted/],
    ['SIGFPE', /arithmetic/],
    ['SIGBUS', /bus error/],
    ['SIGILL', /illegal instruction/],
  ] as const) {
    const { label, how, blame } = ending({ signal });
    assert.match(how, words);
    assert.equal(label, `signal ${signal}`);
    assert.equal(blame, 'worker');
  }
});

test('SIGKILL is told apart: by the kernel for want of memory, by the supervisor, by somebody else', () => {
  const memory = ending({ signal: 'SIGKILL', outOfMemory: true });
  assert.match(memory.how, /for want of memory/);
  assert.equal(memory.blame, 'worker');
  const supervisor = ending({
    signal: 'SIGKILL',
    killedFor: { kind: 'silent', reason: 'its event loop did not turn' },
  });
  assert.equal(supervisor.how, 'killed by the supervisor: its event loop did not turn');
  assert.equal(supervisor.label, 'killed by the supervisor (silent)');
  assert.equal(supervisor.blame, 'worker');
  const outside = ending({ signal: 'SIGKILL' });
  assert.match(outside.how, /from outside/);
  assert.equal(outside.blame, 'outside');
});

test('one that was stopped by a signal for too long is the doing of whoever sent that', () => {
  const words = ending({ signal: 'SIGKILL', killedFor: { kind: 'stopped', reason: 'it was stopped' } });
  assert.equal(words.blame, 'outside');
});

test('other signals come from outside', () => {
  assert.equal(ending({ signal: 'SIGTERM' }).blame, 'outside');
  assert.match(ending({ signal: 'SIGTERM' }).how, /SIGTERM/);
});

test('a process that could not be started says so, and why where that is known', () => {
  assert.equal(ending({}).how, 'could not be started');
  const words = ending({ notStartedFor: 'spawn node EMFILE' });
  assert.equal(words.how, 'could not be started: spawn node EMFILE');
  assert.equal(words.label, ending({}).label);
});
