import type { Server } from 'node:net';

/** listen() is called again in each process that accepts, and sets this anew. (As an option beside `fd` node passes it over.) */
const LISTEN_BACKLOG = 1024;

/** Accepts connections on a listening socket inherited from the supervisor. */
export function listenOn(server: Server, fd: number): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen({ fd }, LISTEN_BACKLOG, () => {
      server.removeListener('error', reject);
      resolve();
    });
  });
}
