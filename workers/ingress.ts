/** Entry of an ingress process. Started by the supervisor with an IPC channel; see src/ingress/ingress.ts. */
import { IngressProcess } from '../src/ingress/ingress.ts';
import type { FromIngress, ToIngress } from '../src/protocol/control.ts';
import { runChild } from '../src/system/child.ts';

let ingress: IngressProcess | undefined;

runChild<ToIngress, FromIngress>('bp-ingress', (message, send) => {
  if (message.type === 'init') ingress = new IngressProcess(message, new URL('.', import.meta.url), send);
  else if (ingress !== undefined) ingress.handle(message);
  // The server stops before this process has begun: there is nothing to finish.
  else if (message.type === 'drain') process.exit(0);
});
