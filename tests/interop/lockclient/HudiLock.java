import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.Scanner;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hudi.common.config.LockConfiguration;
import org.apache.hudi.common.lock.LockProvider;
import org.apache.hudi.config.HoodieLockConfig;
import org.apache.hudi.exception.HoodieLockException;
import org.apache.hudi.storage.StorageConfiguration;
import org.apache.hudi.storage.hadoop.HadoopStorageConfiguration;

/**
 * The lock provider that Hudi's properties name (key=value, each an argument), made and used as its
 * LockManager does; a command a line.
 */
public class HudiLock {
  static final long PAUSE_MS = 200;
  static final long TURN_MS = 60_000;

  public static void main(String[] given) throws Exception {
    PrintStream answers = System.out;
    System.setOut(System.err); // what a library logs is no answer
    Properties said = new Properties();
    for (String each : given) {
      said.setProperty(each.substring(0, each.indexOf('=')), each.substring(each.indexOf('=') + 1));
    }
    HoodieLockConfig config = HoodieLockConfig.newBuilder().fromProperties(said).build();
    LockProvider<?> lock = (LockProvider<?>) Class.forName(said.getProperty("hoodie.write.lock.provider"))
        .getConstructor(LockConfiguration.class, StorageConfiguration.class)
        .newInstance(new LockConfiguration(config.getProps()),
            new HadoopStorageConfiguration(new Configuration()));
    long waitMs = config.getLong(HoodieLockConfig.LOCK_ACQUIRE_WAIT_TIMEOUT_MS);
    answers.println("ready");
    Scanner told = new Scanner(System.in);
    while (told.hasNextLine()) {
      String[] words = told.nextLine().split(" ");
      switch (words[0]) {
        case "acquire":
          answers.println(acquire(lock, waitMs, Long.parseLong(words[1])));
          break;
        case "release":
          lock.unlock();
          answers.println(true);
          break;
        case "close":
          lock.close();
          answers.println(true);
          break;
        case "count":
          answers.println(count(lock, waitMs, Path.of(words[1]), Integer.parseInt(words[2])));
          break;
        default:
          throw new IllegalArgumentException(words[0]);
      }
    }
    System.exit(0);
  }

  /** Tries until the time is over, once at least; a try takes what its provider makes of waitMs. */
  static boolean acquire(LockProvider<?> lock, long waitMs, long patienceMs) throws Exception {
    long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(patienceMs);
    while (true) {
      try {
        if (lock.tryLock(waitMs, TimeUnit.MILLISECONDS)) {
          return true;
        }
      } catch (HoodieLockException busy) {
        busy.printStackTrace();
      }
      if (System.nanoTime() >= end) {
        return false;
      }
      Thread.sleep(PAUSE_MS);
    }
  }

  /** Adds to a number in a file, by no other care than the lock. */
  static boolean count(LockProvider<?> lock, long waitMs, Path file, int times) throws Exception {
    for (int turn = 0; turn < times; turn++) {
      if (!acquire(lock, waitMs, TURN_MS)) {
        return false;
      }
      int number = Integer.parseInt(Files.readString(file).trim());
      Thread.sleep(2); // long enough for another to come in between, if it could
      Files.writeString(file, Integer.toString(number + 1));
      lock.unlock();
    }
    return true;
  }
}
