/**
 * A control group with a memory limit, for tests of the kernel's out-of-memory killer: needs the right to make one (root, outside of most containers).
 *
 * Owner: the test; the group is removed when it ends, after the processes in it have. Bound: one group.
 */
import fs from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { cgroupDirectories } from '../../src/system/cgroup.ts';
import { type CleanUp, temporaryDirectory } from './repository.ts';
import { PROJECT_DIR } from './server.ts';

export class MemoryGroup {
  /** A program that enters the group and then is `bin/serve`. */
  readonly program: string;

  private constructor(cleanUp: CleanUp, dir: string) {
    this.program = path.join(temporaryDirectory(cleanUp, 'group'), 'serve.mjs');
    const serve = pathToFileURL(path.join(PROJECT_DIR, 'bin/serve')).href;
    fs.writeFileSync(
      this.program,
      `import fs from 'node:fs';
       fs.writeFileSync(${JSON.stringify(path.join(dir, 'cgroup.procs'))}, String(process.pid));
       await import(${JSON.stringify(serve)});`,
    );
    cleanUp.after(() => fs.rmdirSync(dir));
  }

  /** Undefined where none can be made. To be called before what runs in it is started, so that it is removed after that has ended. */
  static make(cleanUp: CleanUp, limitBytes: number): MemoryGroup | undefined {
    for (const { path: parent, version } of cgroupDirectories('memory')) {
      const dir = path.join(parent, `batchport-test-${process.pid}`);
      try {
        fs.mkdirSync(dir);
      } catch {
        continue;
      }
      try {
        // Without it the kernel would first fill the swap space, which takes a while. It is not there on every machine.
        if (version === 2) fs.writeFileSync(path.join(dir, 'memory.swap.max'), '0', { flag: 'r+' });
      } catch {}
      try {
        fs.writeFileSync(path.join(dir, version === 2 ? 'memory.max' : 'memory.limit_in_bytes'), String(limitBytes), {
          flag: 'r+',
        });
        return new MemoryGroup(cleanUp, dir);
      } catch {
        fs.rmdirSync(dir);
      }
    }
    return undefined;
  }
}
