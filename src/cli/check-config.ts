/**
 * `check-config`: everything that is wrong with settings, a configuration file and a model repository, one line each, without
 * serving anything.
 *
 * It takes the options of `run`, so that a command line can be checked as it will be used. Problems go to stdout, since they
 * are this command's result. Models are not loaded; `inspect` does that for one file.
 */
import { join } from 'node:path';
import { BatchportError } from '../config/errors.ts';
import { EXIT, ExitError } from '../config/exit-codes.ts';
import { formatModelConfigProblem } from '../config/model-config.ts';
import { formatOrigin, SETTING_NAMES, type ServerSettings, settingRow } from '../config/settings.ts';
import { examineSettings, formatProblem } from '../config/settings-resolve.ts';
import { formatSizeBytes } from '../config/size.ts';
import { type RepositoryModel, readConfigFile } from '../repository/model-directory.ts';
import { scanRepository, singleModel } from '../repository/repository.ts';
import type { Command } from './command.ts';
import { shownPath } from './model-source.ts';
import { settingFlags, settingOptions } from './setting-options.ts';
import { printable, type Terminal } from './terminal.ts';
import { renderTable } from './text-table.ts';

export const checkConfigCommand: Command = {
  name: 'check-config',
  usage: 'check-config [model]',
  describe: 'Check settings, a configuration file and a model repository without serving or loading anything',
  positionals: { model: { describe: 'An .onnx file to check as the model to serve' } },
  options: {
    show: { description: 'Print each setting with its value and where it comes from', type: 'boolean' },
    ...settingOptions(),
  },
  examples: [
    ['check-config --config server.json', 'Check a configuration file and the models it names'],
    ['check-config --model-repository models', 'Check the configuration of every model in a directory'],
    ['check-config --config server.json --show', 'See which value counts, and why'],
  ],
  run: async (args, terminal) => {
    const flags = settingFlags(args);
    const examined = examineSettings({ flags, env: terminal.env, cwd: terminal.cwd, modelRequired: false });
    const { settings } = examined;
    const findings: Findings = {
      problems: examined.problems.map(formatProblem),
      warnings: [...examined.warnings],
      models: 0,
    };
    if (settings !== undefined) {
      const { config, model, modelRepository } = settings;
      if (args.show !== true && config === undefined && model === undefined && modelRepository === undefined) {
        const hint = 'give --config FILE, --model-repository DIR or MODEL.onnx; or --show for the settings';
        throw new ExitError('USAGE', 'nothing to check', { hint });
      }
      if (args.show === true) terminal.out(formatSettings(settings, terminal));
      await checkDevices(settings, findings);
      checkModels(settings, terminal.cwd, findings);
    }
    for (const warning of findings.warnings) terminal.out(`warning: ${printable(warning)}\n`);
    for (const problem of findings.problems) terminal.out(`error: ${printable(problem)}\n`);
    const counts = `${counted(findings.problems.length, 'error')}, ${counted(findings.warnings.length, 'warning')}`;
    terminal.out(`${counts}, ${counted(findings.models, 'model')}\n`);
    if (findings.problems.length === 0) return EXIT.OK.code;
    return examined.problems[0]?.exit === 'USAGE' ? EXIT.USAGE.code : EXIT.CONFIG.code;
  },
};

interface Findings {
  readonly problems: string[];
  readonly warnings: string[];
  /** How many were looked at. */
  models: number;
}

function counted(count: number, what: string): string {
  return `${count} ${what}${count === 1 ? '' : 's'}`;
}

async function checkDevices({ devices, origins }: ServerSettings, { problems }: Findings): Promise<void> {
  // Imported here: what knows devices brings ONNX Runtime with it.
  const { parseDeviceName } = await import('../runtime/device-name.ts');
  for (const device of devices) {
    try {
      parseDeviceName(device);
    } catch (error) {
      if (!(error instanceof BatchportError)) throw error;
      problems.push(`${formatOrigin(origins.devices)}: ${error.message}`);
    }
  }
}

function checkModels({ model, modelRepository }: ServerSettings, cwd: string, findings: Findings): void {
  if (model !== undefined) {
    const { problem } = singleModel(model);
    findings.models++;
    if (problem !== undefined) findings.problems.push(`${shownPath(model, cwd)}: ${problem}`);
  }
  if (modelRepository === undefined) return;
  const { models, problems } = scanRepository(modelRepository);
  for (const { path, message } of problems) findings.problems.push(`${shownPath(path, cwd)}: ${message}`);
  for (const found of models) checkModel(found, cwd, findings);
}

function checkModel(model: RepositoryModel, cwd: string, findings: Findings): void {
  findings.models++;
  const directory = shownPath(model.directory, cwd);
  for (const { name, reason } of model.ignored) findings.warnings.push(`${directory}/${name}: ${reason}`);
  const faults = configFaults(model, cwd);
  findings.problems.push(...faults);
  if (faults.length > 0) return;
  const versions = model.versions.filter(({ problem }) => problem !== undefined);
  for (const { problem } of versions) findings.problems.push(`${directory}: ${problem}`);
  if (model.problem !== undefined && versions.length === 0) findings.problems.push(`${directory}: ${model.problem}`);
}

/** The faults of a model's configuration one by one; the repository tells them in one line. */
function configFaults({ directory, name }: RepositoryModel, cwd: string): string[] {
  const found = readConfigFile(directory, name);
  if (found === undefined || 'problem' in found || found.result.ok) return [];
  const path = shownPath(join(directory, found.file), cwd);
  return found.result.problems.map((problem) => formatModelConfigProblem(path, problem));
}

function formatSettings(settings: ServerSettings, { columns }: Terminal): string {
  const rows = SETTING_NAMES.map((name) => {
    const { key, flag, unit } = settingRow(name);
    const value = settings[name];
    const text = value === undefined ? '-' : Array.isArray(value) ? value.join(', ') : String(value);
    const shown = unit === 'bytes' && value !== undefined ? formatSizeBytes(Number(value)) : text;
    return [key ?? flag ?? name, shown, formatOrigin(settings.origins[name])];
  });
  return renderTable([{ title: 'SETTING' }, { title: 'VALUE' }, { title: 'FROM' }], rows, columns);
}
