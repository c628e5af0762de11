/**
 * Stands in for a service manager: a Unix datagram socket that keeps every message it is sent, as its assignments by name.
 *
 * Node has no datagram sockets of the Unix family, so it is made through koffi. Messages are fetched when a test asks for them; the kernel keeps those that come
 * meanwhile, up to net.unix.max_dgram_qlen of them: a sender then finds the queue full, which is a test of its own. The socket goes with the test.
 */
import assert from 'node:assert/strict';
import { closeSync, rmSync } from 'node:fs';
import koffi from 'koffi';
import type { CleanUp } from './repository.ts';

const AF_UNIX = 1;
const SOCK_DGRAM_NONBLOCK_CLOEXEC = 2 | 0o4000 | 0o2000000;
const MESSAGE_BYTES_MAX = 65_536;
const LIMIT_MS = 30_000;
const POLL_MS = 5;

const libc = koffi.load('libc.so.6');
const socket = libc.func('int socket(int family, int type, int protocol)');
const bind = libc.func('int bind(int fd, const uint8_t *address, uint32_t bytes)');
const recv = libc.func('int64_t recv(int fd, _Out_ uint8_t *bytes, size_t length, int flags)');

export type Message = Readonly<Record<string, string>>;

export class NotifySocket {
  /** As NOTIFY_SOCKET has it: a path, or an abstract name after '@'. */
  readonly name: string;
  /** All that came, oldest first. */
  readonly messages: Message[] = [];
  readonly #buffer = Buffer.alloc(MESSAGE_BYTES_MAX);
  #fd: number;

  constructor(name: string) {
    this.name = name;
    this.#fd = socket(AF_UNIX, SOCK_DGRAM_NONBLOCK_CLOEXEC, 0);
    assert(this.#fd >= 0, 'a socket');
    const text = Buffer.from(name);
    const address = Buffer.alloc(name.startsWith('@') ? 2 + text.length : 3 + text.length);
    address.writeUInt16LE(AF_UNIX, 0);
    text.copy(address, 2);
    if (name.startsWith('@')) address[2] = 0;
    assert.equal(bind(this.#fd, address, address.length), 0, `bind ${name}: errno ${koffi.errno()}`);
  }

  /** Takes what has come. @returns how many messages that was. */
  fetch(): number {
    let count = 0;
    for (;;) {
      const length = Number(recv(this.#fd, this.#buffer, this.#buffer.length, 0));
      if (length < 0) return count;
      this.messages.push(parse(this.#buffer.toString('utf8', 0, length)));
      count++;
    }
  }

  /** The first message that fits, among those kept and those to come. @throws Error with all of them when the time passes. */
  async message(fits: (message: Message) => boolean, limitMs = LIMIT_MS): Promise<Message> {
    const deadline = Date.now() + limitMs;
    for (;;) {
      this.fetch();
      const found = this.messages.find(fits);
      if (found !== undefined) return found;
      assert(Date.now() < deadline, `no such message within ${limitMs} ms; there are ${JSON.stringify(this.messages)}`);
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
  }

  /** Nobody listens any more; a path stays in the file system, as it does when a manager is killed. */
  close(): void {
    if (this.#fd >= 0) closeSync(this.#fd);
    this.#fd = -1;
  }
}

export function notifySocket(cleanUp: CleanUp, name: string): NotifySocket {
  const receiver = new NotifySocket(name);
  cleanUp.after(() => {
    receiver.close();
    if (!name.startsWith('@')) rmSync(name, { force: true });
  });
  return receiver;
}

function parse(text: string): Message {
  const lines = text.split('\n').filter((line) => line !== '');
  return Object.fromEntries(
    lines.map((line) => {
      const at = line.indexOf('=');
      assert(at > 0, `not an assignment: ${JSON.stringify(line)}`);
      return [line.slice(0, at), line.slice(at + 1)];
    }),
  );
}
