import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { errnoName, SystemError, withSystemError } from '../../../src/system/errno.ts';

test('an error number has the name that people search for', () => {
  assert.equal(errnoName(28), 'ENOSPC');
  assert.equal(errnoName(11), 'EAGAIN');
  assert.equal(errnoName(4095), 'E4095');
});

test('a system error says what was done, with which call, and what came of it', () => {
  const error = new SystemError('fallocate', 28, 'reserve 8 bytes');
  assert.equal(error.message, 'reserve 8 bytes: fallocate: ENOSPC (no space left on device)');
  assert.deepEqual([error.syscall, error.errno, error.code], ['fallocate', 28, 'ENOSPC']);
  assert.equal(new SystemError('futex', 14).message, 'futex: EFAULT (bad address in system call argument)');
});

test('a failure of node:fs takes the same form, and any other exception passes unchanged', () => {
  assert.throws(
    () => withSystemError('read the settings', () => readFileSync('/nonexistent/file')),
    (error) => error instanceof SystemError && error.code === 'ENOENT' && error.errno === 2 && error.syscall === 'open',
  );
  const other = new TypeError('other');
  assert.throws(
    () =>
      withSystemError('x', () => {
        throw other;
      }),
    other,
  );
  assert.equal(
    withSystemError('x', () => 7),
    7,
  );
});
