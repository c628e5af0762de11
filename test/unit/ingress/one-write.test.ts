import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { text } from 'node:stream/consumers';
import { describe, test } from 'node:test';
import { writeLonePiecesAlone } from '../../../src/ingress/one-write.ts';
import type { CleanUp } from '../../support/repository.ts';

/** A connection to write on, and all that arrives at its other end. */
async function connection(cleanUp: CleanUp): Promise<{ socket: Socket; gathered: number[]; arrived: Promise<string> }> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  cleanUp.after(() => void server.close());
  const client = connect((server.address() as AddressInfo).port, '127.0.0.1');
  cleanUp.after(() => void client.destroy());
  const [socket] = (await once(server, 'connection')) as [Socket];
  cleanUp.after(() => void socket.destroy());
  const gathered: number[] = [];
  const gather = socket._writev!;
  socket._writev = (pieces, written) => {
    gathered.push(pieces.length);
    gather.call(socket, pieces, written);
  };
  writeLonePiecesAlone(socket);
  return { socket, gathered, arrived: text(client) };
}

describe('an answer on a connection', () => {
  for (const piece of ['one piece', Buffer.from('one piece')]) {
    test(`of one ${typeof piece === 'string' ? 'string' : 'buffer'} is not gathered with the empty piece behind it`, async (t) => {
      const { socket, gathered, arrived } = await connection(t);
      const finished: string[] = [];
      socket.cork();
      socket.write(piece, 'latin1', () => finished.push('piece'));
      socket.write('', 'latin1', () => finished.push('end'));
      socket.uncork();
      socket.end();
      assert.equal(await arrived, 'one piece');
      assert.deepEqual(gathered, []);
      assert.deepEqual(finished, ['piece', 'end']);
    });
  }

  test('of several pieces is gathered', async (t) => {
    const { socket, gathered, arrived } = await connection(t);
    socket.cork();
    for (const piece of ['one ', Buffer.from('two '), '']) socket.write(piece);
    socket.uncork();
    socket.end('three');
    assert.equal(await arrived, 'one two three');
    assert.deepEqual(gathered, [3]);
  });
});
