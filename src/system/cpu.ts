/**
 * How much processor time this process may use: its affinity mask and the CPU quotas of the control groups around it.
 *
 * `os.cpus()` and `os.availableParallelism()` know nothing of quotas: in a container limited to two CPUs of a 64-core
 * host they say 64, and as many threads would spend most of each period stopped by the scheduler.
 */
import { getAffinity } from './affinity.ts';
import { type CgroupDirectory, cgroupDirectories, type ReadText, readText } from './cgroup.ts';

const PERIOD_DEFAULT_US = 100_000;

export interface AvailableCpu {
  /** Cores of the affinity mask, ascending. */
  readonly cores: number[];
  /** CPUs' worth of time that the tightest quota grants, such as 1.5; undefined without one. */
  readonly quota: number | undefined;
  /** Threads that can run at the same time within both: at least 1. */
  readonly threads: number;
}

export function availableCpu(): AvailableCpu {
  const cores = getAffinity();
  const quota = tightestQuota(cgroupDirectories('cpu'), readText);
  return { cores, quota, threads: threadsWithin(cores.length, quota) };
}

/** Whole threads that fit into a number of cores and a quota; a quota below one CPU still gives one thread. */
export function threadsWithin(cores: number, quota: number | undefined): number {
  return Math.max(1, Math.floor(Math.min(cores, quota ?? cores)));
}

/** Smallest quota of a chain of groups, in CPUs. */
export function tightestQuota(directories: readonly CgroupDirectory[], read: ReadText): number | undefined {
  let tightest: number | undefined;
  for (const { version, path } of directories) {
    const quota =
      version === 2
        ? parseCpuMax(read(`${path}/cpu.max`) ?? '')
        : parseCfsQuota(read(`${path}/cpu.cfs_quota_us`) ?? '', read(`${path}/cpu.cfs_period_us`) ?? '');
    if (quota !== undefined && (tightest === undefined || quota < tightest)) tightest = quota;
  }
  return tightest;
}

/** Version 2, cpu.max: "150000 100000" → 1.5 CPUs; "max 100000" → undefined. */
export function parseCpuMax(text: string): number | undefined {
  const [quota = '', period = String(PERIOD_DEFAULT_US)] = text.trim().split(/\s+/);
  return cpus(quota, period);
}

/** Version 1, cpu.cfs_quota_us and cpu.cfs_period_us: "150000", "100000" → 1.5 CPUs; "-1" → undefined. */
export function parseCfsQuota(quota: string, period: string): number | undefined {
  return cpus(quota.trim(), period.trim());
}

function cpus(quota: string, period: string): number | undefined {
  if (!/^\d+$/.test(quota) || !/^\d+$/.test(period)) return undefined;
  const value = Number(quota) / Number(period);
  return Number.isFinite(value) && value > 0 ? value : undefined;
}
