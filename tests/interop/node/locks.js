"use strict";

// The Node lock client, told what to do on standard input: one command a line, words separated by blanks, one line in answer.
//
// node locks.js ENDPOINT TABLE open|closed LEASE_MS HEARTBEAT_MS [trust]

process.env.AWS_SDK_JS_SUPPRESS_MAINTENANCE_MODE_MESSAGE = "1";

const AWS = require("aws-sdk");
const { FailClosed, FailOpen } = require("dynamodb-lock-client");
const fs = require("fs");
const readline = require("readline");

const [endpoint, table, mode, lease, heartbeat, trust] = process.argv.slice(2);
const dynamodb = new AWS.DynamoDB.DocumentClient({
    endpoint,
    region: "eu-west-1",
    accessKeyId: "testing",
    secretAccessKey: "testing",
});
const held = new Map();

function client(retryCount) {
    const common = { dynamodb, lockTable: table, partitionKey: "key", owner: "node-host", retryCount };
    if (mode === "closed") {
        return new FailClosed({ ...common, acquirePeriodMs: 20 });
    }
    const open = { ...common, leaseDurationMs: Number(lease), trustLocalTime: trust === "trust" };
    return new FailOpen(Number(heartbeat) ? { ...open, heartbeatPeriodMs: Number(heartbeat) } : open);
}

function acquire(key, retries) {
    return new Promise((resolve, reject) => {
        client(retries).acquireLock(key, (error, lock) => {
            if (error) {
                return error.code === "FailedToAcquireLock" ? resolve(undefined) : reject(error);
            }
            lock.errors = [];
            lock.on("error", (problem) => lock.errors.push(problem.code));
            return resolve(lock);
        });
    });
}

function release(lock) {
    return new Promise((resolve, reject) => lock.release((error) => (error ? reject(error) : resolve())));
}

function pause(ms) {
    return new Promise((resolve) => setTimeout(resolve, ms));
}

async function hammer(key, counter, seconds, least) {
    const until = Date.now() + 1000 * seconds;
    let done = 0;
    while (Date.now() < until || done < least) {
        const lock = await acquire(key, 1000);
        if (lock === undefined) {
            continue;
        }
        const seen = Number(fs.readFileSync(counter, "utf8"));
        await pause(1);
        // In place and in one piece: a reader without the lock sees an old number, never half of one.
        fs.writeFileSync(counter, String(seen + 1).padStart(8, "0"), { flag: "r+" });
        await release(lock);
        done += 1;
        await pause(5);
    }
    return String(done);
}

async function obey(words) {
    const [verb, key] = words;
    switch (verb) {
        case "acquire": {
            const lock = await acquire(key, Number(words[2]));
            if (lock === undefined) {
                return "refused";
            }
            held.set(key, lock);
            return `held ${lock.fencingToken === undefined ? "-" : lock.fencingToken}`;
        }
        case "release":
            await release(held.get(key));
            held.delete(key);
            return "true";
        case "errors":
            return held.get(key).errors.join(" ") || "none";
        case "hammer":
            return hammer(key, words[2], Number(words[3]), Number(words[4]));
        default:
            throw new Error(verb);
    }
}

async function main() {
    console.log("ready");
    for await (const line of readline.createInterface({ input: process.stdin })) {
        let answer;
        try {
            answer = await obey(line.split(" "));
        } catch (error) {
            answer = `error ${error.code || error}`;
        }
        console.log(String(answer).replace(/\n/g, " "));
    }
    // The rest of the locks is left to lapse, as at a crash.
    process.exit(0);
}

main();
