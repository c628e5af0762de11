/**
 * `infer`: one request to a running server from .npy files or JSON, the answer as tables, JSON or .npy files.
 *
 * Names, datatypes and shapes come from the server's metadata of the model. Bound: LABELS_BYTES_MAX.
 */
import { readFileSync, statSync, writeFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { EXIT, ExitError } from '../config/exit-codes.ts';
import { nearestName } from '../config/nearest.ts';
import { writeNpy } from '../tensor/npy.ts';
import { formatShape } from '../tensor/shape.ts';
import { specsOf, withClient } from './client-call.ts';
import { allTexts, type Command, lastText, valueOption } from './command.ts';
import { jsonText, lengthOf } from './element-text.ts';
import { wholeNumber } from './number-option.ts';
import { serverUrl } from './server-url.ts';
import { readInputs } from './tensor-input.ts';
import { formatOutput, type OutputTensor, TOP_MAX } from './tensor-print.ts';
import { printable, type Terminal } from './terminal.ts';

const LABELS_BYTES_MAX = 16 * 2 ** 20;
const TIMEOUT_MS_MAX = 86_400_000;

export const inferCommand: Command = {
  name: 'infer',
  usage: 'infer <model>',
  describe: 'Send one request to a running server and show the answer',
  positionals: { model: { describe: 'Name of the model on the server' } },
  options: {
    input: valueOption('[NAME=]FILE.npy, FILE.json or JSON; once for each input of the model', { alias: 'i' }),
    output: valueOption('[NAME=]FILE.npy to write an output to; may be repeated', { alias: 'o' }),
    url: valueOption('Address of the server', {
      defaultDescription: 'the server that runs here, else http://127.0.0.1:8000',
    }),
    'model-version': valueOption('Version of the model', { defaultDescription: 'chosen by the server' }),
    top: valueOption('Show the K largest values of each row instead of the first ones'),
    labels: valueOption('Text file with a name for each class, one per line, for --top'),
    'timeout-ms': valueOption('Give up after this many milliseconds', { defaultDescription: '60000' }),
    json: { description: 'Print the answer as JSON, every value in full', type: 'boolean' },
  },
  examples: [
    ['infer mnist --input image.npy --top 3', 'A model with one input; the three likeliest classes'],
    [`infer adder --input a='[[1, 2]]' --input b=b.json`, 'Inputs by name, inline or from a file'],
    ['infer mnist --input image.npy --output logits=out.npy', 'Keep an output as a NumPy file'],
  ],
  run: async (args, terminal) => {
    const model = lastText(args.model)!;
    const version = lastText(args['model-version']);
    const top = wholeNumber(lastText(args.top), '--top', TOP_MAX);
    const timeoutMs = wholeNumber(lastText(args['timeout-ms']), '--timeout-ms', TIMEOUT_MS_MAX);
    const labels = readLabels(lastText(args.labels), terminal.cwd);
    if (labels !== undefined && top === undefined) throw new ExitError('USAGE', '--labels needs --top K');
    const url = serverUrl(lastText(args.url), 'http', terminal);

    // A person repeats the command; waiting for a server that may come would look like a hang.
    return withClient(url, { retry: false }, async (client) => {
      const limits = timeoutMs === undefined ? {} : { timeoutMs };
      const which = version === undefined ? {} : { version };
      const metadata = await client.modelMetadata(model, { ...which, ...limits });
      const inputs = readInputs(allTexts(args.input), specsOf(metadata.inputs), terminal.cwd);
      const files = outputFiles(
        allTexts(args.output),
        metadata.outputs.map(({ name }) => name),
      );
      const answer = await client.infer(model, { inputs, ...which, ...limits });
      for (const output of answer.outputs) {
        const file = files.get(output.name);
        if (file !== undefined) saveOutput(output, file, terminal);
      }
      if (args.json === true) {
        terminal.out(answerJson(answer));
      } else {
        const shown = answer.outputs.filter(({ name }) => !files.has(name));
        if (labels !== undefined) warnOfLabels(labels, shown, terminal);
        const options = { top, labels, columns: terminal.columns };
        terminal.out(shown.map((output) => formatOutput(output, options)).join('\n'));
      }
      return EXIT.OK.code;
    });
  },
};

/** File by output; NAME= may be missing where the model has one output. */
function outputFiles(args: readonly string[], names: readonly string[]): Map<string, string> {
  const files = new Map<string, string>();
  for (const arg of args) {
    const byLength = names.toSorted((a, b) => b.length - a.length);
    const named = byLength.find((name) => arg.startsWith(`${name}=`));
    const name = named ?? (names.length === 1 && !arg.includes('=') ? names[0] : undefined);
    if (name === undefined) {
      const given = arg.split('=')[0]!;
      const meant = nearestName(given, names);
      const hint = meant === undefined ? `its outputs: ${names.join(', ')}` : `did you mean "${meant}"?`;
      throw new ExitError('USAGE', `--output ${arg}: the model has no output of that name`, { hint });
    }
    const file = named === undefined ? arg : arg.slice(named.length + 1);
    if (!/\.npy$/i.test(file)) throw new ExitError('USAGE', `--output ${arg}: the file must end in .npy`);
    files.set(name, file);
  }
  return files;
}

function saveOutput(output: OutputTensor, file: string, terminal: Terminal): void {
  const { name, datatype, shape } = output;
  if (output.datatype === 'BYTES' || output.datatype === 'BF16') {
    throw new ExitError('USAGE', `output "${name}" is ${datatype}, which a .npy file cannot hold`, {
      hint: 'use --json',
    });
  }
  const { buffer, byteOffset, byteLength } = output.data;
  try {
    writeFileSync(
      resolve(terminal.cwd, file),
      writeNpy(datatype, shape, new Uint8Array(buffer, byteOffset, byteLength)),
    );
  } catch (error) {
    throw new ExitError('FAILURE', `cannot write ${file}: ${error instanceof Error ? error.message : String(error)}`);
  }
  terminal.err(`${printable(name)}  ${datatype} ${formatShape(shape)} written to ${file}\n`);
}

/** The protocol's response with exact values, one output per line. */
function answerJson(answer: {
  readonly modelName: string;
  readonly modelVersion?: string | undefined;
  readonly outputs: readonly OutputTensor[];
}): string {
  const outputs = answer.outputs.map((output) => {
    const values: string[] = [];
    for (let i = 0; i < lengthOf(output); i++) values.push(jsonText(output, i));
    const { name, datatype, shape } = output;
    return `{"name":${JSON.stringify(name)},"datatype":"${datatype}","shape":${formatShape(shape)},"data":[${values.join(',')}]}`;
  });
  const { modelName, modelVersion } = answer;
  const head = JSON.stringify({ model_name: modelName, model_version: modelVersion }).slice(0, -1);
  return `${head},"outputs":[\n${outputs.join(',\n')}\n]}\n`;
}

function readLabels(path: string | undefined, cwd: string): string[] | undefined {
  if (path === undefined) return undefined;
  try {
    const absolute = resolve(cwd, path);
    const { size } = statSync(absolute);
    if (size > LABELS_BYTES_MAX) throw new Error(`${size} bytes; at most ${LABELS_BYTES_MAX} are read`);
    const lines = readFileSync(absolute, 'utf8').split(/\r?\n/);
    if (lines.at(-1) === '') lines.pop();
    return lines;
  } catch (error) {
    throw new ExitError('USAGE', `cannot read ${path}: ${error instanceof Error ? error.message : String(error)}`);
  }
}

/** A list of another length usually is another model's. */
function warnOfLabels(labels: readonly string[], outputs: readonly OutputTensor[], terminal: Terminal): void {
  for (const { name, shape } of outputs) {
    const classes = shape.at(-1);
    if (classes === labels.length || classes === undefined) continue;
    terminal.err(`warning: ${labels.length} labels for the ${classes} classes of ${printable(name)}\n`);
  }
}
