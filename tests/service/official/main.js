// What a job does with the official clients; INPUT_WHAT names one of the functions below.
import fs from 'node:fs';
import path from 'node:path';
import {DefaultArtifactClient} from '@actions/artifact';
import * as cache from '@actions/cache';
import * as core from '@actions/core';

const client = new DefaultArtifactClient();
const say = (...words) => console.log('>>', ...words);

function makeTree(folder) {
  fs.mkdirSync(path.join(folder, 'sub'), {recursive: true});
  fs.writeFileSync(path.join(folder, 'a.txt'), 'first\n');
  fs.writeFileSync(path.join(folder, 'sub', 'b.bin'), Buffer.alloc(3_000_000, 7));
  fs.writeFileSync(path.join(folder, 'sub', 'tool'), '#!/bin/sh\n', {mode: 0o755});
}

const refusal = async (work) => {
  try {
    await work();
  } catch (error) {
    return `${error.name}: ${error.message}`;
  }
  return 'none';
};

const functions = {
  async save() {
    makeTree('tree');
    say('v2', await cache.restoreCache(['tree'], 'tree-1', ['tree-']));
    say('saved', (await cache.saveCache(['tree'], 'tree-1')) > 0);
    say('again', await cache.saveCache(['tree'], 'tree-1'));
    const files = ['tree/a.txt', 'tree/sub/b.bin', 'tree/sub/tool'];
    const made = await client.uploadArtifact('dist', files, 'tree', {retentionDays: 1, compressionLevel: 1});
    say('uploaded', made.id > 0, made.size > 0, /^[0-9a-f]{64}$/.test(made.digest));
    const raw = await client.uploadArtifact('a.txt', ['tree/a.txt'], 'tree', {skipArchive: true});
    say('raw', raw.id > 0);
    say('twice', await refusal(() => client.uploadArtifact('dist', files, 'tree')));
    say('missing', await refusal(() => client.getArtifact('nothing')));
  },
  async restore() {
    say('hit', await cache.restoreCache(['tree'], 'tree-1'));
    say('content', fs.readFileSync('tree/a.txt', 'utf8').trim(), fs.statSync('tree/sub/b.bin').size);
    say('mode', (fs.statSync('tree/sub/tool').mode & 0o777).toString(8));
    say('prefix', await cache.restoreCache(['tree'], 'tree-2', ['tree-'], {lookupOnly: true}));
    const {artifacts} = await client.listArtifacts({latest: true});
    say('listed', artifacts.map((each) => each.name).sort().join());
    const {artifact} = await client.getArtifact('dist');
    await client.downloadArtifact(artifact.id, {path: 'out', expectedHash: artifact.digest});
    say('downloaded', fs.readFileSync('out/a.txt', 'utf8').trim(), fs.statSync('out/sub/b.bin').size);
    const raw = (await client.getArtifact('a.txt')).artifact;
    await client.downloadArtifact(raw.id, {path: 'raw', skipDecompress: false});
    say('raw', fs.readFileSync('raw/a.txt', 'utf8').trim());
    await client.deleteArtifact('dist');
    say('deleted', (await client.listArtifacts()).artifacts.map((each) => each.name).join());
    say('identity', (await core.getIDToken('cloud')).split('.').length);
  },
  // What the built-in actions saved, and something for them.
  async native() {
    fs.rmSync('tree', {recursive: true, force: true});
    say('native cache', await cache.restoreCache(['tree'], 'native-1'));
    say('native content', fs.readFileSync('tree/a.txt', 'utf8').trim(), fs.statSync('tree/sub/b.bin').size);
    const {artifact} = await client.getArtifact('native');
    await client.downloadArtifact(artifact.id, {path: 'native', expectedHash: artifact.digest});
    say('native artifact', fs.readFileSync('native/sub/tool', 'utf8').trim());
  },
  async older() {
    delete process.env.ACTIONS_CACHE_SERVICE_V2;
    makeTree('tree');
    say('miss', await cache.restoreCache(['tree'], 'old-1', ['old-']));
    say('saved', (await cache.saveCache(['tree'], 'old-1')) > 0);
    fs.rmSync('tree', {recursive: true});
    say('hit', await cache.restoreCache(['tree'], 'old-2', ['old-']));
    say('content', fs.readFileSync('tree/a.txt', 'utf8').trim());
  },
};

functions[process.env.INPUT_WHAT]().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
