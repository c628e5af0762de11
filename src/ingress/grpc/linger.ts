/**
 * Calls that have been answered before their client has sent all: most clients notice and stop. What the others still send is read and dropped for a while, then the stream
 * is reset; at once would be too early, as a reset overtakes the answer in the queue of frames.
 */
import { constants, type ServerHttp2Stream } from 'node:http2';

const LINGER_MS = 1000;

/** Ends the client's side of a stream whose own side is done. */
export function linger(stream: ServerHttp2Stream): void {
  if (stream.closed) return;
  const timer = setTimeout(() => {
    if (!stream.closed) stream.close(constants.NGHTTP2_NO_ERROR);
  }, LINGER_MS);
  timer.unref();
  stream.once('close', () => clearTimeout(timer));
}
