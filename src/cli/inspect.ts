/**
 * `inspect`: what a model file takes and gives, and whether its rows can be batched, found out by loading it on the CPU.
 *
 * No server is needed. Whoever prints a model's own texts goes through `printable`. Bound: the file is read in pieces.
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { resolve } from 'node:path';
import { BatchportError } from '../config/errors.ts';
import { EXIT, ExitError } from '../config/exit-codes.ts';
import { checkModelFile } from '../repository/model-file.ts';
import type { ModelSignature, TensorSpec } from '../tensor/signature.ts';
import { type Command, lastText } from './command.ts';
import { modelTypesText } from './model-types-text.ts';
import { printable, type Terminal } from './terminal.ts';
import { renderTable } from './text-table.ts';

export const inspectCommand: Command = {
  name: 'inspect',
  usage: 'inspect <file>',
  describe: "Show a model file's inputs, outputs and whether it can be batched",
  positionals: { file: { describe: 'The .onnx file' } },
  options: {
    json: { description: 'Print the same as JSON', type: 'boolean' },
    types: { description: 'Print TypeScript types of the tensors, for batchport/client', type: 'boolean' },
  },
  examples: [
    ['inspect mnist.onnx', 'Inputs and outputs with datatypes and shapes'],
    ['inspect mnist.onnx --json', 'The same for scripts'],
    ['inspect mnist.onnx --types >mnist.d.ts', 'For client.infer<Mnist>(…), which the compiler then checks'],
  ],
  run: async (args, terminal) => {
    const file = lastText(args.file)!;
    const path = resolve(terminal.cwd, file);
    const { problem, sizeBytes } = checkModelFile(path);
    if (problem !== undefined) throw new ExitError('MODEL', `${file} ${problem}`);
    if (args.types === true && args.json === true)
      throw new ExitError('USAGE', '--types and --json exclude each other');
    const sha256 = await sha256Of(path);
    const report = { file, sizeBytes, sha256, ...(await loadFacts(path, file)) };
    if (args.types === true) terminal.out(modelTypesText(file, report.signature));
    else terminal.out(args.json === true ? reportJson(report) : reportText(report, terminal));
    return EXIT.OK.code;
  },
};

interface Facts {
  readonly signature: ModelSignature;
  readonly batching: { readonly batchable: boolean; readonly proven: boolean; readonly reason: string };
}

interface Report extends Facts {
  readonly file: string;
  readonly sizeBytes: number;
  readonly sha256: string;
}

async function loadFacts(path: string, file: string): Promise<Facts> {
  // Imported here: ONNX Runtime is a large library, and no other command needs it.
  const { Session } = await import('../runtime/session.ts');
  const { Runner } = await import('../runtime/runner.ts');
  const { OrtError } = await import('../runtime/ort-error.ts');
  const { probeBatchability } = await import('../device/batchability.ts');
  try {
    const session = Session.load(path, { provider: 'cpu', deviceId: 0, intraOpThreads: 1, logId: 'inspect' });
    const runner = new Runner(session.handle);
    try {
      const { batchable, proven, reason } = probeBatchability(runner, session.signature);
      return { signature: session.signature, batching: { batchable, proven, reason } };
    } finally {
      runner.dispose();
      session.release();
    }
  } catch (error) {
    if (error instanceof OrtError || error instanceof BatchportError) {
      const reason = printable(error.message.trim().replaceAll(/\s+/g, ' '));
      throw new ExitError('MODEL', `${file} cannot be loaded: ${reason}`, { cause: error });
    }
    throw error;
  }
}

function reportText(report: Report, { columns }: Terminal): string {
  const { signature, sha256, sizeBytes, batching } = report;
  const { producer, graphName, description, version, custom } = signature.metadata;
  const facts: [string, string][] = [
    ['file', report.file],
    ['size', `${sizeBytes} bytes`],
    ['sha256', sha256],
    ['producer', producer],
    ['graph', graphName],
    ['description', description],
    ['model version', version],
    ...Object.entries(custom).map(([key, value]): [string, string] => [`metadata ${key}`, value]),
    ['batchable', `${verdict(batching)}: ${batching.reason}`],
  ];
  const known = facts.filter(([, value]) => value !== '').map(([name, value]) => [name, shortened(value)]);
  const skipped = signature.skippedOutputs.map(({ name, reason }) => [name, 'not served', reason]);
  const tensors = [{ title: 'NAME' }, { title: 'DATATYPE' }, { title: 'SHAPE' }];
  const inputs = signature.inputs.map(tensorRow);
  const outputs = [...signature.outputs.map(tensorRow), ...skipped];
  return [
    withoutTitles(renderTable([{ title: '' }, { title: '' }], known, columns)),
    `inputs\n${indented(renderTable(tensors, inputs, columns))}`,
    `outputs\n${indented(renderTable(tensors, outputs, columns))}`,
  ].join('\n');
}

function verdict({ batchable, proven }: Facts['batching']): string {
  if (!batchable) return 'no';
  return proven ? 'yes' : 'undecided';
}

function tensorRow({ name, datatype, shape, symbols }: TensorSpec): string[] {
  const dims = shape.map((dim, i) => (dim === -1 ? symbols[i] || '?' : String(dim)));
  return [name, datatype, `[${dims.join(',')}]`];
}

function reportJson(report: Report): string {
  const { signature, file, sizeBytes, sha256, batching } = report;
  const { producer, graphName, description, version, custom } = signature.metadata;
  const tensor = ({ name, datatype, shape, symbols }: TensorSpec) => ({ name, datatype, shape, symbols });
  const json = {
    file,
    size_bytes: sizeBytes,
    sha256,
    metadata: { producer, graph_name: graphName, description, version, custom },
    inputs: signature.inputs.map(tensor),
    outputs: signature.outputs.map(tensor),
    skipped_outputs: signature.skippedOutputs,
    batching,
  };
  return `${JSON.stringify(json, undefined, 2)}\n`;
}

async function sha256Of(path: string): Promise<string> {
  const hash = createHash('sha256');
  try {
    for await (const part of createReadStream(path, { highWaterMark: 2 ** 20 })) hash.update(part as Buffer);
  } catch (error) {
    throw new ExitError('MODEL', `cannot read ${path}: ${error instanceof Error ? error.message : String(error)}`);
  }
  return hash.digest('hex');
}

/** Some exporters keep whole label lists or licences in the metadata; --json has them in full. */
function shortened(text: string): string {
  return text.length <= 200 ? text : `${text.slice(0, 199)}…`;
}

function withoutTitles(table: string): string {
  return table.slice(table.indexOf('\n') + 1);
}

function indented(lines: string): string {
  return lines.replace(/^(?=.)/gm, '  ');
}
