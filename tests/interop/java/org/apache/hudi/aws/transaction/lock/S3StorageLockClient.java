package org.apache.hudi.aws.transaction.lock;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Properties;
import org.apache.hudi.client.transaction.lock.StorageLockClient;
import org.apache.hudi.client.transaction.lock.models.LockGetResult;
import org.apache.hudi.client.transaction.lock.models.LockUpsertResult;
import org.apache.hudi.client.transaction.lock.models.StorageLockData;
import org.apache.hudi.client.transaction.lock.models.StorageLockFile;
import org.apache.hudi.common.util.Option;
import org.apache.hudi.common.util.collection.Pair;

/**
 * The two requests that Hudi's StorageBasedLockProvider makes of S3, to an unsigned endpoint.
 *
 * <p>Hudi's Spark bundle names this class for s3:// tables and leaves it out: its own is in
 * hudi-aws-bundle, which knows no endpoint but AWS's. Everything that decides (provider, lease,
 * heartbeat, lock manager) is Hudi's; the answers are mapped as Hudi maps them.
 */
public final class S3StorageLockClient implements StorageLockClient {
  private static final Duration TIMEOUT = Duration.ofSeconds(10);

  private final HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
  private final String owner;
  private final String lock;

  public S3StorageLockClient(String owner, String lockFileUri, Properties ignored) {
    this.owner = owner;
    this.lock = lockFileUri;
  }

  @Override
  public Pair<LockGetResult, Option<StorageLockFile>> readCurrentLockFile() {
    HttpResponse<byte[]> answer = send(request(lock).GET());
    if (answer.statusCode() == 200) {
      ByteArrayInputStream body = new ByteArrayInputStream(answer.body());
      return Pair.of(LockGetResult.SUCCESS, Option.of(StorageLockFile.createFromStream(body, etag(answer))));
    }
    boolean missing = answer.statusCode() == 404;
    return Pair.of(missing ? LockGetResult.NOT_EXISTS : LockGetResult.UNKNOWN_ERROR, Option.empty());
  }

  @Override
  public Pair<LockUpsertResult, Option<StorageLockFile>> tryUpsertLockFile(
      StorageLockData wanted, Option<StorageLockFile> seen) {
    HttpRequest.Builder put = request(lock).PUT(BodyPublishers.ofByteArray(StorageLockFile.toByteArray(wanted)));
    if (seen.isPresent()) {
      put.header("If-Match", seen.get().getVersionId());
    } else {
      put.header("If-None-Match", "*");
    }
    HttpResponse<byte[]> answer = send(put);
    switch (answer.statusCode()) {
      case 200:
        return Pair.of(LockUpsertResult.SUCCESS, Option.of(new StorageLockFile(wanted, etag(answer))));
      case 412:
        return Pair.of(LockUpsertResult.ACQUIRED_BY_OTHERS, Option.empty());
      case 429:
        return Pair.of(LockUpsertResult.THROTTLED, Option.empty());
      default:
        return Pair.of(LockUpsertResult.UNKNOWN_ERROR, Option.empty());
    }
  }

  @Override
  public Option<String> readObject(String uri, boolean checkExistsFirst) {
    HttpResponse<byte[]> answer = send(request(uri).GET());
    return answer.statusCode() == 200
        ? Option.of(new String(answer.body(), StandardCharsets.UTF_8))
        : Option.empty();
  }

  @Override
  public boolean writeObject(String uri, String content) {
    return send(request(uri).PUT(BodyPublishers.ofString(content))).statusCode() == 200;
  }

  @Override
  public void close() {}

  private HttpRequest.Builder request(String uri) {
    Pair<String, String> place = StorageLockClient.parseBucketAndPath(uri);
    String url = System.getProperty("interop.endpoint") + "/" + place.getLeft() + "/" + place.getRight();
    // The embedded server's record names its clients by this.
    return HttpRequest.newBuilder(URI.create(url)).timeout(TIMEOUT).header("User-Agent", "lockkit-client/hudi-" + owner);
  }

  private HttpResponse<byte[]> send(HttpRequest.Builder request) {
    try {
      return http.send(request.build(), BodyHandlers.ofByteArray());
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new IllegalStateException(interrupted);
    }
  }

  private static String etag(HttpResponse<?> answer) {
    return answer.headers().firstValue("ETag").orElseThrow();
  }
}
