import com.amazonaws.services.dynamodbv2.AcquireLockOptions;
import com.amazonaws.services.dynamodbv2.AmazonDynamoDBLockClient;
import com.amazonaws.services.dynamodbv2.AmazonDynamoDBLockClientOptions;
import com.amazonaws.services.dynamodbv2.LockItem;
import com.amazonaws.services.dynamodbv2.model.LockNotGrantedException;
import java.net.URI;
import java.util.Scanner;
import java.util.concurrent.TimeUnit;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;
import software.amazon.awssdk.http.apache.ApacheHttpClient;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.dynamodb.DynamoDbClient;

/** AWS's lock client, made and used as Hudi's DynamoDBBasedLockProviderBase does; a command a line. */
public class LockClient {
  public static void main(String[] given) throws Exception {
    String table = given[1], key = given[2];
    long leaseMs = Long.parseLong(given[3]);
    DynamoDbClient dynamo = DynamoDbClient.builder()
        .endpointOverride(URI.create(given[0]))
        .region(Region.US_EAST_1)
        .httpClient(ApacheHttpClient.create())
        .credentialsProvider(StaticCredentialsProvider.create(AwsBasicCredentials.create("a", "b")))
        .build();
    AmazonDynamoDBLockClient client = new AmazonDynamoDBLockClient(
        AmazonDynamoDBLockClientOptions.builder(dynamo, table)
            .withTimeUnit(TimeUnit.MILLISECONDS)
            .withLeaseDuration(leaseMs)
            .withHeartbeatPeriod(leaseMs / 3)
            .withCreateHeartbeatBackgroundThread(true)
            .build());
    LockItem held = null;
    System.out.println("ready");
    Scanner told = new Scanner(System.in);
    while (told.hasNextLine()) {
      String[] words = told.nextLine().split(" ");
      switch (words[0]) {
        case "acquire":
          try {
            held = client.acquireLock(AcquireLockOptions.builder(key)
                .withAdditionalTimeToWaitForLock(Long.parseLong(words[1]))
                .withTimeUnit(TimeUnit.MILLISECONDS)
                .build());
            System.out.println(!held.isExpired());
          } catch (LockNotGrantedException busy) {
            System.out.println(false);
          }
          break;
        case "held":
          System.out.println(held != null && !held.isExpired());
          break;
        case "release":
          System.out.println(client.releaseLock(held));
          break;
        default:
          throw new IllegalArgumentException(words[0]);
      }
    }
    System.exit(0);
  }
}
