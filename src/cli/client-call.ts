/** What the commands that talk to a server with the client have in common: its errors as exit codes, its metadata as inputs. */
import type { Client, ClientOptions } from '../client/client.ts';
import { ConnectionError, InferenceError } from '../client/errors.ts';
import { ExitError } from '../config/exit-codes.ts';
import { isDatatype } from '../tensor/datatype.ts';
import type { InputSpec } from './tensor-input.ts';
import { printable } from './terminal.ts';

/** @throws ExitError FAILURE for a datatype that this client does not know */
export function specsOf(inputs: readonly { name: string; datatype: string; shape: readonly number[] }[]): InputSpec[] {
  return inputs.map(({ name, datatype, shape }) => {
    if (!isDatatype(datatype)) {
      throw new ExitError('FAILURE', `input "${name}" has the datatype ${datatype}, which this client does not know`);
    }
    return { name, datatype, shape };
  });
}

/**
 * Calls `use` with a client, which is closed afterwards.
 *
 * The client is imported here so that commands without one start without an HTTP library.
 *
 * @throws ExitError USAGE for a URL that the client does not take, UNAVAILABLE or REFUSED for its errors.
 */
export async function withClient<T>(
  url: string,
  options: ClientOptions,
  use: (client: Client) => Promise<T>,
): Promise<T> {
  const { Client } = await import('../client/client.ts');
  const client = refusingUrl(() => new Client(url, options));
  try {
    return await use(client);
  } catch (error) {
    throw explained(error, url);
  } finally {
    await client.close();
  }
}

function refusingUrl<T>(create: () => T): T {
  try {
    return create();
  } catch (error) {
    if (error instanceof TypeError) throw new ExitError('USAGE', `--url: ${error.message}`, { cause: error });
    throw error;
  }
}

/** The client's errors with the exit code and the advice that fit them. */
function explained(error: unknown, url: string): unknown {
  if (error instanceof InferenceError) {
    const unavailable = error.status === 503 || error.status === 429;
    const message = `the server answered ${error.status} ${error.code}: ${printable(error.message)}`;
    const hint = error.code === 'NOT_FOUND' ? '--url takes the address of the HTTP port, without a path' : undefined;
    return new ExitError(unavailable ? 'UNAVAILABLE' : 'REFUSED', message, { hint, cause: error });
  }
  if (error instanceof ConnectionError) {
    const hint =
      error.code === 'CONNECT_FAILED' ? 'is the server running? give --url, if it listens elsewhere' : undefined;
    return new ExitError('UNAVAILABLE', `no answer from ${url}: ${printable(error.message)}`, { hint, cause: error });
  }
  return error;
}
