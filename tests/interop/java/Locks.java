import com.amazonaws.services.dynamodbv2.AcquireLockOptions;
import com.amazonaws.services.dynamodbv2.AmazonDynamoDBLockClient;
import com.amazonaws.services.dynamodbv2.AmazonDynamoDBLockClientOptions;
import com.amazonaws.services.dynamodbv2.GetLockOptions;
import com.amazonaws.services.dynamodbv2.LockItem;
import com.amazonaws.services.dynamodbv2.ReleaseLockOptions;
import com.amazonaws.services.dynamodbv2.model.LockCurrentlyUnavailableException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.http.urlconnection.UrlConnectionHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.dynamodb.DynamoDbClient;

/**
 * The Java lock client, told what to do on standard input: one command a line, words separated by blanks, one line in answer.
 *
 * <p>Locks ENDPOINT TABLE LEASE_MS HEARTBEAT_MS [OWNER]
 */
public final class Locks {
    private final AmazonDynamoDBLockClient client;
    private final Map<String, LockItem> held = new HashMap<>();

    private Locks(String[] arguments) {
        DynamoDbClient dynamo = DynamoDbClient.builder()
                .endpointOverride(URI.create(arguments[0]))
                .region(Region.EU_WEST_1)
                .credentialsProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create("testing", "testing")))
                .httpClientBuilder(UrlConnectionHttpClient.builder())
                .build();
        AmazonDynamoDBLockClientOptions.AmazonDynamoDBLockClientOptionsBuilder options =
                AmazonDynamoDBLockClientOptions.builder(dynamo, arguments[1])
                        .withTimeUnit(TimeUnit.MILLISECONDS)
                        .withLeaseDuration(Long.parseLong(arguments[2]))
                        .withHeartbeatPeriod(Long.parseLong(arguments[3]))
                        .withCreateHeartbeatBackgroundThread(true);
        if (arguments.length > 4) {
            options.withOwnerName(arguments[4]);
        }
        client = new AmazonDynamoDBLockClient(options.build());
    }

    public static void main(String[] arguments) throws Exception {
        Locks locks = new Locks(arguments);
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.out.println("ready");
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String answer;
            try {
                answer = locks.obey(line.split(" "));
            } catch (Exception error) {
                answer = "error " + error;
            }
            System.out.println(answer.replace('\n', ' '));
        }
        // The rest of the locks is left to lapse, as at a crash.
        System.exit(0);
    }

    private String obey(String[] words) throws Exception {
        String key = words.length > 1 ? words[1] : "";
        return switch (words[0]) {
            case "acquire" -> acquire(key, words[2], Long.parseLong(words[3]), words.length > 4 ? words[4] : null);
            case "try" -> acquire(key, "skip", 0, null);
            case "release" -> release(key, words.length > 2 ? words[2] : null);
            case "get" -> show(client.getLockFromDynamoDB(GetLockOptions.builder(key).build()));
            case "steal" -> steal(key);
            case "valid" -> String.valueOf(held.containsKey(key) && !held.get(key).isExpired());
            case "list" -> client.getAllLocksFromDynamoDB(false)
                    .map(lock -> lock.getPartitionKey() + (lock.isExpired() ? "-" : "+"))
                    .sorted()
                    .collect(Collectors.joining(" "));
            case "hammer" -> hammer(key, Path.of(words[2]), words[3], Double.parseDouble(words[4]), Integer.parseInt(words[5]));
            default -> throw new IllegalArgumentException(words[0]);
        };
    }

    /** MODE: delete, mark, update, which also marks, or skip, which never waits; with DATA it is written, without what stands is kept. */
    private AcquireLockOptions options(String key, String mode, long waitMs, String data) {
        AcquireLockOptions.AcquireLockOptionsBuilder options = AcquireLockOptions.builder(key)
                .withTimeUnit(TimeUnit.MILLISECONDS)
                .withRefreshPeriod(20L)
                .withAdditionalTimeToWaitForLock(waitMs)
                .withDeleteLockOnRelease(mode.equals("delete"))
                .withUpdateExistingLockRecord(mode.equals("update"))
                .withShouldSkipBlockingWait(mode.equals("skip"))
                .withReplaceData(data != null);
        if (data != null) {
            options.withData(ByteBuffer.wrap(data.getBytes(StandardCharsets.UTF_8)));
        }
        return options.build();
    }

    private String acquire(String key, String mode, long waitMs, String data) throws InterruptedException {
        try {
            Optional<LockItem> lock = client.tryAcquireLock(options(key, mode, waitMs, data));
            lock.ifPresent(item -> held.put(key, item));
            return lock.isPresent() ? show(lock) : "refused";
        } catch (LockCurrentlyUnavailableException held) {
            return "refused";
        }
    }

    private String release(String key, String data) {
        LockItem lock = held.remove(key);
        ReleaseLockOptions.ReleaseLockOptionsBuilder options =
                ReleaseLockOptions.builder(lock).withDeleteLock(lock.getDeleteLockItemOnClose());
        if (data != null) {
            options.withData(ByteBuffer.wrap(data.getBytes(StandardCharsets.UTF_8)));
        }
        return String.valueOf(client.releaseLock(options.build()));
    }

    /** Mark the lock of another process with the same owner name released: the number of its row stays as it is. */
    private String steal(String key) {
        LockItem lock = client.getLockFromDynamoDB(GetLockOptions.builder(key).build()).orElseThrow();
        return String.valueOf(client.releaseLock(ReleaseLockOptions.builder(lock).withDeleteLock(false).build()));
    }

    private String hammer(String key, Path counter, String mode, double seconds, int least) throws Exception {
        long until = System.nanoTime() + (long) (seconds * 1e9);
        int done = 0;
        while (System.nanoTime() < until || done < least) {
            LockItem lock = client.acquireLock(options(key, mode, 60_000, null));
            int seen = Integer.parseInt(Files.readString(counter));
            Thread.sleep(1);
            // In place and in one piece: a reader without the lock sees an old number, never half of one.
            Files.writeString(counter, String.format("%08d", seen + 1), StandardOpenOption.WRITE);
            client.releaseLock(ReleaseLockOptions.builder(lock).withDeleteLock(mode.equals("delete")).build());
            done++;
            Thread.sleep(5);
        }
        return String.valueOf(done);
    }

    private static String show(Optional<LockItem> lock) {
        return lock.map(item -> String.join(
                        " ",
                        item.getOwnerName(),
                        String.valueOf(item.getLeaseDuration()),
                        item.getRecordVersionNumber(),
                        item.getData().map(data -> StandardCharsets.UTF_8.decode(data.duplicate()).toString()).orElse("-")))
                .orElse("none");
    }
}
