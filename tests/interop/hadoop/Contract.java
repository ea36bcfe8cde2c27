import java.util.Arrays;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.contract.AbstractBondedFSContract;
import org.apache.hadoop.fs.contract.AbstractContractBulkDeleteTest;
import org.apache.hadoop.fs.contract.AbstractContractContentSummaryTest;
import org.apache.hadoop.fs.contract.AbstractContractCopyFromLocalTest;
import org.apache.hadoop.fs.contract.AbstractContractCreateTest;
import org.apache.hadoop.fs.contract.AbstractContractDeleteTest;
import org.apache.hadoop.fs.contract.AbstractContractEtagTest;
import org.apache.hadoop.fs.contract.AbstractContractGetFileStatusTest;
import org.apache.hadoop.fs.contract.AbstractContractMkdirTest;
import org.apache.hadoop.fs.contract.AbstractContractMultipartUploaderTest;
import org.apache.hadoop.fs.contract.AbstractContractOpenTest;
import org.apache.hadoop.fs.contract.AbstractContractRenameTest;
import org.apache.hadoop.fs.contract.AbstractContractRootDirectoryTest;
import org.apache.hadoop.fs.contract.AbstractContractSeekTest;
import org.apache.hadoop.fs.contract.AbstractContractUnbufferTest;
import org.apache.hadoop.fs.contract.AbstractContractVectoredReadTest;
import org.apache.hadoop.fs.contract.AbstractFSContract;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Hadoop's contract tests of file systems, by its s3a client, at the endpoint of core-site.xml. */
public class Contract {

  public static void main(String[] names) throws ClassNotFoundException {
    JUnitCore runner = new JUnitCore();
    runner.addListener(new RunListener() {
      private boolean failed;
      private boolean left;

      @Override
      public void testStarted(Description test) {
        failed = left = false;
      }

      @Override
      public void testFailure(Failure failure) {
        failed = true;
        Throwable why = failure.getException();
        System.out.println("FAILED " + failure.getDescription() + ": " + why);
        Arrays.stream(why.getStackTrace()).limit(12).forEach(at -> System.out.println("  " + at));
      }

      @Override
      public void testAssumptionFailure(Failure failure) {
        left = true;
        System.out.println("LEFT " + failure.getDescription() + ": " + failure.getMessage());
      }

      @Override
      public void testIgnored(Description test) {
        System.out.println("LEFT " + test + ": ignored by its author");
      }

      @Override
      public void testFinished(Description test) {
        if (!failed && !left) {
          System.out.println("PASSED " + test);
        }
      }
    });
    Class<?>[] all = Contract.class.getDeclaredClasses();
    Arrays.sort(all, (one, other) -> one.getName().compareTo(other.getName()));
    Class<?>[] chosen = Arrays.stream(all)
        .filter(each -> each != S3a.class)
        .filter(each -> names.length == 0 || Arrays.asList(names).contains(each.getSimpleName()))
        .toArray(Class<?>[]::new);
    runner.run(chosen);
    System.exit(0);
  }

  /** What Hadoop's own contract/s3a.xml says of s3a is in core-site.xml. */
  public static class S3a extends AbstractBondedFSContract {
    public S3a(Configuration configuration) {
      super(configuration);
    }

    @Override
    public String getScheme() {
      return "s3a";
    }
  }

  public static class BulkDelete extends AbstractContractBulkDeleteTest {
    @Override
    protected AbstractFSContract createContract(Configuration configuration) {
      return new S3a(configuration);
    }
  }

  public static class ContentSummary extends AbstractContractContentSummaryTest {
    @Override
    protected AbstractFSContract createContract(Configuration configuration) {
      return new S3a(configuration);
    }
  }

  public static class CopyFromLocal extends AbstractContractCopyFromLocalTest {
    @Override
    protected AbstractFSContract createContract(Configuration configuration) {
      return new S3a(configuration);
    }
  }

  public static class Create extends AbstractContractCreateTest {
    @Override
    protected AbstractFSContract createContract(Configuration configuration) {
      return new S3a(configuration);
    }
  }

  public static class Delete extends AbstractContractDeleteTest {
    @Override
    protected AbstractFSContract createContract(Configuration configuration) {
      return new S3a(configuration);
    }
  }

  public static class Etag extends AbstractContractEtagTest {
    @Override
    protected AbstractFSContract createContract(Configuration configuration) {
      return new S3a(configuration);
    }
  }

  public static class GetFileStatus extends AbstractContractGetFileStatusTest {
    @Override
    protected AbstractFSContract createContract(Configuration configuration) {
      return new S3a(configuration);
    }
  }

  public static class Mkdir extends AbstractContractMkdirTest {
    @Override
    protected AbstractFSContract createContract(Configuration configuration) {
      return new S3a(configuration);
    }
  }

  public static class Multipart extends AbstractContractMultipartUploaderTest {
    @Override
    protected AbstractFSContract createContract(Configuration configuration) {
      return new S3a(configuration);
    }

    @Override
    protected int partSizeInBytes() {
      return 5 << 20;
    }

    @Override
    protected int getTestPayloadCount() {
      return 3;
    }

    @Override
    protected boolean finalizeConsumesUploadIdImmediately() {
      return false;
    }

    @Override
    protected boolean supportsConcurrentUploadsToSamePath() {
      return true;
    }
  }

  public static class Open extends AbstractContractOpenTest {
    @Override
    protected AbstractFSContract createContract(Configuration configuration) {
      return new S3a(configuration);
    }
  }

  public static class Rename extends AbstractContractRenameTest {
    @Override
    protected AbstractFSContract createContract(Configuration configuration) {
      return new S3a(configuration);
    }
  }

  public static class RootDirectory extends AbstractContractRootDirectoryTest {
    @Override
    protected AbstractFSContract createContract(Configuration configuration) {
      return new S3a(configuration);
    }
  }

  public static class Seek extends AbstractContractSeekTest {
    @Override
    protected AbstractFSContract createContract(Configuration configuration) {
      return new S3a(configuration);
    }
  }

  public static class Unbuffer extends AbstractContractUnbufferTest {
    @Override
    protected AbstractFSContract createContract(Configuration configuration) {
      return new S3a(configuration);
    }
  }

  public static class VectoredRead extends AbstractContractVectoredReadTest {
    public VectoredRead(String buffers) {
      super(buffers);
    }

    @Override
    protected AbstractFSContract createContract(Configuration configuration) {
      return new S3a(configuration);
    }
  }
}
