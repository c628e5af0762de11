/** The file by which other commands find a server: written, removed, and those of servers that were killed removed by the next one. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { createLogger } from '../../../src/config/log.ts';
import { RuntimeFile } from '../../../src/supervisor/runtime-file.ts';
import { processStart } from '../../../src/system/process-start.ts';
import { temporaryDirectory } from '../../support/repository.ts';

// Above the kernel's largest process id.
const NO_PID = 2 ** 22 + 1;
const OWN = `server-${process.pid}.json`;

// Story: a file of a killed server stayed, and led commands astray, once another process had its number (shm-leftovers, 60).
test('files of dead servers are removed, also where another process has their number; those of living ones are not', (t) => {
  const dir = temporaryDirectory(t, 'run');
  const put = (pid: number, started: number | undefined) =>
    writeFileSync(join(dir, `server-${pid}.json`), JSON.stringify({ pid, started, http: 'http://127.0.0.1:1' }));
  const file = new RuntimeFile(dir, createLogger('test', 'fatal'));
  put(NO_PID, 1);
  put(1, processStart(1)! + 1);
  put(process.ppid, processStart(process.ppid));
  file.write({ http: 'http://127.0.0.1:2' });
  assert.deepEqual(readdirSync(dir).sort(), [`server-${process.ppid}.json`, OWN].sort());
  assert.deepEqual(JSON.parse(readFileSync(join(dir, OWN), 'utf8')), {
    pid: process.pid,
    started: processStart(process.pid),
    http: 'http://127.0.0.1:2',
  });
  file.remove();
  assert.deepEqual(readdirSync(dir), [`server-${process.ppid}.json`]);
});
