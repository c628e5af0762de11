import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';
import { openFilesMax } from '../../../src/system/open-files.ts';

const HEAD = 'Limit                     Soft Limit           Hard Limit           Units     \n';

test('the limit of open files is the soft one', () => {
  const limits = (soft: string) =>
    `${HEAD}Max processes             63288                63288                processes \nMax open files            ${soft.padEnd(20)} 524288               files     \n`;
  assert.equal(
    openFilesMax(() => limits('1024')),
    1024,
  );
  assert.equal(
    openFilesMax(() => limits('unlimited')),
    Number.POSITIVE_INFINITY,
  );
  assert.throws(() => openFilesMax(() => HEAD), /\/proc\/self\/limits/);
});

test('the limit of this process is the one of its shell', () => {
  // Node raises the soft limit to the hard one.
  const { stdout } = spawnSync('sh', ['-c', 'ulimit -Hn'], { encoding: 'utf8' });
  assert.equal(String(openFilesMax()), stdout.trim().replace('unlimited', 'Infinity'));
});
