/** What gRPC costs a process that nobody speaks it to. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { test } from 'node:test';

test('the gRPC library is not loaded before there is a connection', () => {
  const ingress = new URL('../../../src/ingress/ingress.js', import.meta.url).href;
  const server = new URL('../../../src/ingress/grpc/grpc-server.js', import.meta.url).href;
  const program = `
    import { createRequire } from 'node:module';
    const loaded = () => Object.keys(createRequire(import.meta.url).cache).filter((name) => name.includes('@grpc')).length;
    await import(${JSON.stringify(ingress)});
    const before = loaded();
    await import(${JSON.stringify(server)});
    console.log(before, loaded() > 0);
    process.exit();
  `;
  const { stdout, stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', program], { encoding: 'utf8' });
  assert.equal(stdout.trim(), '0 true', stderr);
});
